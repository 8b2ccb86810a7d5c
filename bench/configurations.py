# SPDX-License-Identifier: Apache-2.0
"""The named workloads and the user's own files: from options to a `Problem`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from bench.demand import generate_demand
from bench.networks import Network, grid_network, permute_nodes
from bench.scenarios import NUM_SCENARIOS, Problem, make_problem
from bench.tntp import read_tntp_flow, read_tntp_network, read_tntp_trips


@dataclasses.dataclass(frozen=True)
class Configuration:
    """Sizes of a generated workload and the batches it is meant for."""

    rows: int
    cols: int
    road_links: int
    zones: int
    destinations: int
    sigma: float
    batches: tuple[int, ...]

    @property
    def od_links(self) -> int:
        """Number of virtual links: every zone times its destinations."""
        return self.zones * self.destinations


CONFIGURATIONS = {
    "tiny": Configuration(4, 6, 76, 24, 23, 1.0, (8,)),
    "city": Configuration(38, 38, 4_300, 90, 32, 1.0, (1, 8)),
    "road-42955": Configuration(120, 120, 42_955, 900, 32, 1.0, (1, 8)),
    "od-hubs": Configuration(120, 120, 42_955, 900, 104, 1.5, (8,)),
}
DEFAULT_OD_PER_ZONE = 64  # of a user's trips; every pair of a network of up to 65 zones
GENERATED_OD_PER_ZONE, GENERATED_SIGMA = 32, 1.0  # where a network comes without trips


@dataclasses.dataclass(frozen=True)
class Source:
    """What to train on: the name of a configuration, or TNTP files."""

    config: str = "city"
    net: Path | None = None
    trips: Path | None = None
    flow: Path | None = None
    node: Path | None = None
    od_per_zone: int | None = None
    permute: bool = False
    seed: int = 0
    num_scenarios: int = NUM_SCENARIOS

    def batches(self) -> tuple[int, ...]:
        """Batch sizes that this source is run with unless told otherwise."""
        return (1, 8) if self.net else CONFIGURATIONS[self.config].batches

    def network(self) -> Network:
        """The generated or loaded network, before any renumbering."""
        if self.net:
            return read_tntp_network(self.net, self.node)
        c = CONFIGURATIONS[self.config]
        return grid_network(self.config, c.rows, c.cols, c.road_links, c.zones, self.seed)

    def problem(
        self,
        processes: int | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> Problem:
        """Build network, demand and scenarios."""
        network = self.network()
        published = None
        fit: Literal["roads", "demand", "nothing"] = "demand" if self.net else "roads"
        if self.net and self.trips:
            demand = read_tntp_trips(self.trips, len(network.zones))
            published = read_tntp_flow(self.flow, network) if self.flow else None
            od_per_zone, fit = self.od_per_zone or DEFAULT_OD_PER_ZONE, "nothing"
        else:
            if self.permute:
                network = permute_nodes(network, self.seed)
            per_zone, sigma = GENERATED_OD_PER_ZONE, GENERATED_SIGMA
            if not self.net:
                c = CONFIGURATIONS[self.config]
                per_zone, sigma = c.destinations, c.sigma
            od_per_zone = self.od_per_zone or per_zone
            demand = generate_demand(network, od_per_zone, sigma, self.seed)
        return make_problem(
            network,
            demand,
            self.seed,
            od_per_zone=od_per_zone,
            published=published,
            fit=fit,
            num_scenarios=self.num_scenarios,
            processes=processes,
            progress=progress,
        )
