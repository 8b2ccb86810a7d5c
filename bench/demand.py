# SPDX-License-Identifier: Apache-2.0
"""Travel demand: which zones exchange trips, and how many."""

from __future__ import annotations

import dataclasses

import numpy as np

from bench.networks import Network

DECAY = 40.0  # blocks over which the wish to travel falls by e


@dataclasses.dataclass(frozen=True)
class Demand:
    """p origin-destination pairs: node numbers int32 [p] and vehicles float64 [p]."""

    origins: np.ndarray
    destinations: np.ndarray
    amount: np.ndarray

    @property
    def num_pairs(self) -> int:
        """p, the number of pairs."""
        return len(self.origins)

    def select(self, keep: np.ndarray) -> Demand:
        """The pairs that a mask or an index array names."""
        return Demand(self.origins[keep], self.destinations[keep], self.amount[keep])

    def heaviest(self, per_zone: int) -> Demand:
        """At most `per_zone` pairs of each origin, those of most vehicles, order kept."""
        order = np.lexsort((-self.amount, self.origins))
        first = np.searchsorted(self.origins[order], self.origins[order])
        rank = np.arange(self.num_pairs) - first
        return self.select(np.sort(order[rank < per_zone]))


def generate_demand(network: Network, per_zone: int, sigma: float, seed: int) -> Demand:
    """`per_zone` destinations for each zone, drawn without repeats, and gravity amounts.

    The weight of a destination is its lognormal(sigma) attraction times exp(-distance / 40).
    Adding Gumbel noise to the log weight and keeping the largest is sampling without repeats.
    Amounts are relative; `scenarios` sets the total.
    """
    rng = np.random.default_rng([seed, network.num_nodes, per_zone])
    zones = network.zones
    per_zone = min(per_zone, len(zones) - 1)
    place = network.coordinates[zones] * network.block_per_unit
    attraction = rng.normal(0.0, sigma, len(zones))
    distance = np.linalg.norm(place[:, None] - place[None, :], axis=2)
    log_weight = attraction[None, :] - distance / DECAY
    noisy = log_weight + rng.gumbel(size=log_weight.shape)
    np.fill_diagonal(noisy, -np.inf)
    chosen = np.sort(np.argsort(-noisy, axis=1, kind="stable")[:, :per_zone], axis=1)
    weight = np.exp(np.take_along_axis(log_weight, chosen, axis=1))
    production = rng.lognormal(0.0, 0.5, (len(zones), 1))
    amount = production * weight / weight.sum(axis=1, keepdims=True)
    return Demand(np.repeat(zones, per_zone), zones[chosen.ravel()], amount.ravel())
