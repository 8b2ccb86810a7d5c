# SPDX-License-Identifier: Apache-2.0
"""Road networks: the record that every source fills, and the seeded grid generator."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

ONE_WAY_SHARE = 0.06
DIAGONAL_SHARE = 0.04
MAX_DIAGONALS = 2  # 4 grid neighbours and 2 diagonals: no node exceeds degree 6
FREEWAY_EVERY, ARTERIAL_EVERY = 20, 5
ARTERIAL_SPEED, FREEWAY_SPEED = 1.8, 3.0  # relative to a local road


@dataclasses.dataclass(frozen=True)
class Network:
    """A directed road network of n nodes and m links.

    senders, receivers: int32 [m]. time (free flow), capacity (vehicles per hour): float64 [m].
    coordinates: float64 [n, 2], zeros where unknown; times `block_per_unit` they are in blocks of
    the generated grid. zones: int32 [z], nodes where trips start and end. Nodes below
    `first_through` are ends of paths only.
    """

    name: str
    num_nodes: int
    senders: np.ndarray
    receivers: np.ndarray
    time: np.ndarray
    capacity: np.ndarray
    coordinates: np.ndarray
    zones: np.ndarray
    first_through: int = 0
    block_per_unit: float = 1.0

    @property
    def num_links(self) -> int:
        """m, the number of directed links."""
        return len(self.senders)


def grid_network(
    name: str, rows: int, cols: int, num_links: int, num_zones: int, seed: int
) -> Network:
    """A grid town with exactly `num_links` directed links, strongly connected, degree <= 6.

    A random spanning tree of the candidate streets stays two-way; further streets, two-way but
    for 6 % of the remaining links, are added until the count is met. Links are sorted by
    (sender, receiver). Every 5th line is an arterial and every 20th a freeway: faster.
    Capacities are 1; `scenarios.make_problem` sizes the roads for a demand.
    """
    rng = np.random.default_rng([seed, rows, cols, num_links])
    streets = _candidate_streets(rows, cols, rng)
    in_tree = _random_spanning_tree(streets, rows * cols, rng)
    extras = rng.permutation(np.flatnonzero(~in_tree))
    one_way, two_way = _split_extras(num_links - 2 * int(in_tree.sum()), len(extras))
    both = np.concatenate([np.flatnonzero(in_tree), extras[:two_way]])
    single = streets[extras[two_way : two_way + one_way]]
    single = np.where(rng.random((one_way, 1)) < 0.5, single, single[:, ::-1])
    links = np.concatenate([streets[both], streets[both][:, ::-1], single])
    links = links[np.lexsort((links[:, 1], links[:, 0]))]
    place = np.stack(np.divmod(np.arange(rows * cols), cols), axis=1).astype(np.float64)
    speed = _speed(place[links[:, 0]], place[links[:, 1]])
    length = np.linalg.norm(place[links[:, 0]] - place[links[:, 1]], axis=1)
    return Network(
        name=name,
        num_nodes=rows * cols,
        senders=links[:, 0].astype(np.int32),
        receivers=links[:, 1].astype(np.int32),
        capacity=np.ones(num_links),
        time=length / speed * rng.lognormal(0.0, 0.1, num_links),
        coordinates=place,
        zones=np.sort(rng.choice(rows * cols, num_zones, replace=False)).astype(np.int32),
    )


def _candidate_streets(rows: int, cols: int, rng: np.random.Generator) -> np.ndarray:
    """Undirected pairs [s, 2]: all grid neighbours and 4 % of the diagonals."""
    node = np.arange(rows * cols).reshape(rows, cols)
    across = np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()], axis=1)
    down = np.stack([node[:-1].ravel(), node[1:].ravel()], axis=1)
    falling = np.stack([node[:-1, :-1].ravel(), node[1:, 1:].ravel()], axis=1)
    rising = np.stack([node[:-1, 1:].ravel(), node[1:, :-1].ravel()], axis=1)
    diagonals = np.concatenate([falling, rising])
    wanted = round(DIAGONAL_SHARE * len(diagonals))
    used = np.zeros(rows * cols, np.int64)
    chosen = []
    for pair in diagonals[rng.permutation(len(diagonals))]:
        if len(chosen) == wanted:
            break
        if used[pair].max() < MAX_DIAGONALS:
            used[pair] += 1
            chosen.append(pair)
    return np.concatenate([across, down, np.array(chosen, np.int64).reshape(-1, 2)])


def _random_spanning_tree(
    streets: np.ndarray, num_nodes: int, rng: np.random.Generator
) -> np.ndarray:
    """Mask [s] of the streets in the minimum tree of random weights."""
    weight = rng.permutation(len(streets)) + 1.0
    graph = coo_array((weight, (streets[:, 0], streets[:, 1])), shape=(num_nodes, num_nodes))
    kept = minimum_spanning_tree(graph.tocsr()).data
    return np.isin(weight, kept)


def _split_extras(missing: int, available: int) -> tuple[int, int]:
    """(one-way, two-way) numbers of extra streets whose links add up to `missing`."""
    one_way = round(ONE_WAY_SHARE * missing)
    one_way += (missing - one_way) % 2
    two_way = (missing - one_way) // 2
    if missing < 0 or one_way + two_way > available:
        raise ValueError(f"no grid of this size has that number of links ({missing} to place).")
    return one_way, two_way


def _speed(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Speed [m] of links from start [m, 2] to end [m, 2] by the line that they run along."""
    along = np.where(start[:, 0] == end[:, 0], start[:, 0], start[:, 1])
    straight = (start == end).any(axis=1)
    freeway = straight & (along % FREEWAY_EVERY == FREEWAY_EVERY // 2)
    arterial = straight & (along % ARTERIAL_EVERY == 0)
    return np.where(freeway, FREEWAY_SPEED, np.where(arterial, ARTERIAL_SPEED, 1.0))


def permute_nodes(network: Network, seed: int) -> Network:
    """The same network under random node numbers, links sorted anew: locality is lost.

    Nodes that no path may pass stay below `first_through`.
    """
    rng = np.random.default_rng([seed, network.num_nodes])
    low = network.first_through
    rest = low + rng.permutation(network.num_nodes - low)
    new = np.concatenate([rng.permutation(low), rest]).astype(np.int32)
    senders, receivers = new[network.senders], new[network.receivers]
    order = np.lexsort((receivers, senders))
    coordinates = np.empty_like(network.coordinates)
    coordinates[new] = network.coordinates
    return dataclasses.replace(
        network,
        name=network.name + " (permuted)",
        senders=senders[order],
        receivers=receivers[order],
        capacity=network.capacity[order],
        time=network.time[order],
        coordinates=coordinates,
        zones=np.sort(new[network.zones]),
    )
