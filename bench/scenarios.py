# SPDX-License-Identifier: Apache-2.0
"""Training problems: a network, demand scenarios, their assigned flows, and node features."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Literal

import numpy as np

from bench.assignment import Router
from bench.demand import Demand
from bench.networks import Network

NUM_SCENARIOS, NUM_HELD_OUT = 64, 16
DEMAND_SIGMA, TIME_SIGMA = 0.2, 0.05
UNIT = 1000.0  # vehicles; flows, capacities and demand are thousands from the problem on
SMALL_NETWORK = 500  # up to here a node's input is its row of the demand matrix
BUSY_QUANTILE = 0.9  # demand made for a given network is scaled until this link is exactly full
MEAN_FLOW, SPARE, LANE_STEP, ONE_LANE = 2000.0, 1.25, 200.0, 600.0  # vehicles per hour
FEW_PATHS = 10_000_000  # origins x nodes x scenarios below which processes are not worth starting


@dataclasses.dataclass(frozen=True)
class Problem:
    """Everything a column needs, as NumPy arrays; S scenarios, the held-out ones last.

    senders, receivers: int32 [m]; od_senders, od_receivers: int32 [p].
    coordinates: float32 [n, 2] in [-1, 1]; link_features: float32 [m, 2], capacity and free-flow
    time over their means. features: float32 [n, S, F]. In thousands of vehicles: capacity [m],
    flows [m, S] and net_demand [n, S], which is production - attraction; float32.
    `published`: whether one more scenario, the last, holds the user's published flows.
    """

    name: str
    senders: np.ndarray
    receivers: np.ndarray
    od_senders: np.ndarray
    od_receivers: np.ndarray
    coordinates: np.ndarray
    link_features: np.ndarray
    capacity: np.ndarray
    features: np.ndarray
    flows: np.ndarray
    net_demand: np.ndarray
    num_train: int
    num_held_out: int
    published: bool

    @property
    def num_nodes(self) -> int:
        """n, the number of nodes."""
        return len(self.coordinates)

    def describe(self) -> dict[str, int | str]:
        """Sizes for the record and the table's title."""
        return {
            "name": self.name,
            "nodes": self.num_nodes,
            "road_links": len(self.senders),
            "od_links": len(self.od_senders),
            "features": self.features.shape[2],
            "train": self.num_train,
            "held_out": self.num_held_out,
            "largest_in_degree_road": int(np.bincount(self.receivers).max()),
            "largest_in_degree_od": int(np.bincount(self.od_receivers).max()),
        }

    def save(self, path: Path) -> None:
        """Write all fields to an .npz file."""
        np.savez(path, **{f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    @classmethod
    def load(cls, path: Path) -> Problem:
        """Read what `save` wrote."""
        with np.load(path) as stored:
            values = {key: stored[key] for key in stored.files}
        return cls(**{k: v.item() if v.ndim == 0 else v for k, v in values.items()})


def connected(router: Router, demand: Demand) -> tuple[Demand, np.ndarray]:
    """The pairs that a path connects, and the flow [m] of all of them at free-flow times."""
    flow, reached = router.assign(router.network.time, demand, demand.amount)
    if not reached.any():
        raise ValueError(f"{router.network.name}: no path connects any demand pair.")
    return demand.select(reached), flow


def scaled(demand: Demand, flow: np.ndarray, capacity: np.ndarray | None) -> Demand:
    """Relative amounts in vehicles, judged by the flow [m] that they make.

    With roads given, the 90 % quantile of used links runs at capacity; else the mean flow of used
    links is 2,000 vehicles an hour.
    """
    used = flow > 0
    if capacity is None:
        scale = MEAN_FLOW / float(flow[used].mean())
    else:
        scale = 1.0 / float(np.quantile((flow / capacity)[used], BUSY_QUANTILE))
    return dataclasses.replace(demand, amount=demand.amount * scale)


def road_sizes(flow: np.ndarray) -> np.ndarray:
    """Capacity [m] of roads built for an expected flow [m]: 25 % above it, in steps, one lane."""
    return np.maximum(np.ceil(SPARE * flow / LANE_STEP) * LANE_STEP, ONE_LANE)


def make_problem(
    network: Network,
    demand: Demand,
    seed: int,
    *,
    fit: Literal["roads", "demand", "nothing"],
    od_per_zone: int | None = None,
    published: np.ndarray | None = None,
    num_scenarios: int = NUM_SCENARIOS,
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Problem:
    """Draw scenarios, assign them, and lay out what the model reads.

    Each scenario multiplies every pair's demand by lognormal(0.2) and every link's time by
    lognormal(0.05). The od links are the pairs, at most the heaviest `od_per_zone` of each zone;
    the demand itself stays whole. `fit` says what is made to measure: the roads, for the
    mean flow of the training scenarios; the demand, for the roads; nothing, for both are given.
    """
    router = Router.of(network)
    demand, flow = connected(router, demand)
    if fit != "nothing":
        demand = scaled(demand, flow, network.capacity if fit == "demand" else None)
    rng = np.random.default_rng([seed, network.num_links, demand.num_pairs])
    amounts = demand.amount * rng.lognormal(0.0, DEMAND_SIGMA, (num_scenarios, demand.num_pairs))
    noise = [int(s) for s in rng.integers(2**32, size=num_scenarios)]
    flows = np.empty((num_scenarios, network.num_links))
    work = _assign_all(router, demand, amounts, noise, processes)
    for done, flow in enumerate(work):
        flows[done] = flow
        progress(done + 1, num_scenarios)
    held_out = num_scenarios * NUM_HELD_OUT // NUM_SCENARIOS
    if fit == "roads":
        expected = flows[: num_scenarios - held_out].mean(axis=0)
        network = dataclasses.replace(network, capacity=road_sizes(expected))
    if published is not None:
        amounts = np.concatenate([amounts, demand.amount[None]])
        flows = np.concatenate([flows, published[None]])
    virtual = demand.heaviest(od_per_zone) if od_per_zone else demand
    features, net_demand = _node_arrays(network, demand, amounts)
    return Problem(
        name=network.name,
        senders=network.senders,
        receivers=network.receivers,
        od_senders=virtual.origins.astype(np.int32),
        od_receivers=virtual.destinations.astype(np.int32),
        coordinates=_unit_square(network.coordinates),
        link_features=np.stack(
            [network.capacity / network.capacity.mean(), network.time / network.time.mean()], axis=1
        ).astype(np.float32),
        capacity=(network.capacity / UNIT).astype(np.float32),
        features=features,
        flows=np.ascontiguousarray(flows.T / UNIT, np.float32),
        net_demand=net_demand,
        num_train=num_scenarios - held_out,
        num_held_out=held_out,
        published=published is not None,
    )


def _node_arrays(
    network: Network, demand: Demand, amounts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Node features [n, S, F] and net demand [n, S] of pair amounts [S, p]."""
    n, count = network.num_nodes, len(amounts)
    production, attraction = np.zeros((count, n)), np.zeros((count, n))
    for s in range(count):
        production[s] = np.bincount(demand.origins, amounts[s], n)
        attraction[s] = np.bincount(demand.destinations, amounts[s], n)
    net_demand = np.ascontiguousarray((production - attraction).T / UNIT, np.float32)
    if n <= SMALL_NETWORK:
        matrix = np.zeros((n, count, n), np.float32)
        for s in range(count):
            np.add.at(matrix[:, s], (demand.origins, demand.destinations), amounts[s] / UNIT)
        return matrix, net_demand
    is_zone = np.zeros(n)
    is_zone[network.zones] = 1.0
    out_capacity = np.bincount(network.senders, network.capacity, n)
    in_capacity = np.bincount(network.receivers, network.capacity, n)
    columns = [
        production.T / _typical(production),
        attraction.T / _typical(attraction),
        np.broadcast_to(is_zone[:, None], (n, count)),
        np.broadcast_to((out_capacity / _typical(out_capacity))[:, None], (n, count)),
        np.broadcast_to((in_capacity / _typical(in_capacity))[:, None], (n, count)),
    ]
    return np.stack(columns, axis=2).astype(np.float32), net_demand


def _typical(values: np.ndarray) -> float:
    """Mean of what is not 0."""
    return float(values[values > 0].mean())


def _unit_square(coordinates: np.ndarray) -> np.ndarray:
    """Coordinates centred and divided by the larger half extent; zeros stay zeros."""
    centred = coordinates - (coordinates.max(axis=0) + coordinates.min(axis=0)) / 2
    return (centred / max(float(np.abs(centred).max()), 1e-9)).astype(np.float32)


def _perturbed_flow(router: Router, demand: Demand, amount: np.ndarray, noise: int) -> np.ndarray:
    factor = np.random.default_rng(noise).lognormal(0.0, TIME_SIGMA, router.network.num_links)
    return router.assign(router.network.time * factor, demand, amount)[0]


_shared: tuple[Router, Demand] | None = None  # set once in every worker process


def _share(router: Router, demand: Demand) -> None:
    global _shared
    _shared = (router, demand)


def _shared_flow(job: tuple[np.ndarray, int]) -> np.ndarray:
    assert _shared is not None
    return _perturbed_flow(*_shared, *job)


def _assign_all(
    router: Router,
    demand: Demand,
    amounts: np.ndarray,
    noise: list[int],
    processes: int | None,
) -> Iterator[np.ndarray]:
    """Flow of every scenario in order; processes, for SciPy's Dijkstra holds the GIL."""
    jobs = list(zip(amounts, noise, strict=True))
    paths = len(np.unique(demand.origins)) * router.network.num_nodes * len(jobs)
    processes = processes or (len(os.sched_getaffinity(0)) if paths > FEW_PATHS else 1)
    if processes == 1:
        yield from (_perturbed_flow(router, demand, *job) for job in jobs)
        return
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=_share, initargs=(router, demand)
    ) as pool:
        yield from pool.map(_shared_flow, jobs)
