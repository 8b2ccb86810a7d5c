# SPDX-License-Identifier: Apache-2.0
"""Graphs of two index patterns, and the operands of a line."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.fused.ops import OPS, FusedOp
from bench.kernels import patterns
from bench.kernels.line import Line, random_normal
from bench.kernels.topology import Topology

# pattern: those of senders and of receivers
PATTERNS = {
    "uniform": ("uniform", "uniform"),
    "local": ("local", "local"),
    "hub": ("uniform", "hub"),
    "hub-both": ("hub", "hub"),
    "sorted": ("uniform", "sorted"),
}
OTHER_END = 1_000_000  # added to the seed of the senders


@dataclasses.dataclass(frozen=True)
class Ends:
    """A graph: the topologies of both ends, and what implementations index by, made once."""

    senders: Topology
    receivers: Topology

    @cached_property
    def graph(self) -> Any:
        """The graph of jax_index."""
        import jax_index

        n = self.receivers.num_rows
        ends = (self.senders.ids, self.receivers.ids)
        return jax_index.Graph(*ends, num_senders=n, num_receivers=n)

    @cached_property
    def ids(self) -> tuple[jax.Array, jax.Array]:
        """Senders and receivers on the device."""
        return jnp.asarray(self.senders.ids), jnp.asarray(self.receivers.ids)

    @cached_property
    def csr(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row pointers, senders and the order of edges by receiver, int32, on the host."""
        plan = self.graph.receivers
        order = np.asarray(plan.perm)
        return np.asarray(plan.indptr), self.senders.ids[order], order


def generate(pattern: str, num_rows: int, num_edges: int, seed: int = 0) -> Ends:
    """The named pattern; equal arguments give equal ids."""
    sender, receiver = PATTERNS[pattern]
    return Ends(
        patterns.generate(sender, num_rows, num_edges, seed + OTHER_END),
        patterns.generate(receiver, num_rows, num_edges, seed),
    )


class Inputs:
    """Operands and index of a line, shared by all implementations and made when first asked for."""

    def __init__(self, line: Line, ends: Ends, seed: int, copies: int):
        self.line, self.ends = line, ends
        self._seed, self._copies = seed, copies

    @property
    def op(self) -> FusedOp:
        """What is measured."""
        return OPS[self.line.op]

    @property
    def num_rows(self) -> int:
        """The number of nodes."""
        return self.ends.receivers.num_rows

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the operands."""
        line = self.line
        return self.op.shapes(self.num_rows, self.ends.receivers.num_edges, line.width)

    @cached_property
    def operands(self) -> list[tuple[jax.Array, ...]]:
        """Random operands; several sets where they rotate."""
        sets = []
        for copy in range(self._copies):
            seeds = np.random.SeedSequence([self._seed, copy]).generate_state(len(self.shapes))
            sets.append(
                tuple(
                    random_normal(int(seed) >> 1, shape, self.line.dtype)
                    for seed, shape in zip(seeds, self.shapes.values(), strict=True)
                )
            )
        return sets

    @property
    def index(self) -> Any:
        """What jax_index indexes by: the graph, or the receivers' plan."""
        graph = self.ends.graph
        return graph.receivers if self.op.on_plan else graph

    def xla(self, ends: Any, *operands: Any) -> Any:
        """The composition, for this number of nodes."""
        return self.op.xla(ends, self.num_rows, *operands)

    def part(self, kept: int) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, jax.Array]]:
        """The first operands and the ends of the first edges alone."""
        m = self.ends.receivers.num_edges
        cut = [x[:kept] if len(x) == m else x for x in self.operands[0]]
        senders, receivers = self.ends.ids
        return tuple(cut), (senders[:kept], receivers[:kept])
