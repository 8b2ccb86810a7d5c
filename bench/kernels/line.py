# SPDX-License-Identifier: Apache-2.0
"""A line of the benchmark: one op on one topology, one width, one dtype."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.kernels.topology import Topology

# What an op moves: node rows to edges ("gather") or edge rows to nodes ("scatter").
OPS = {
    "gather": "gather",
    "scatter_add": "scatter",
    "gather gradient": "scatter",
    "scatter_add gradient": "gather",
}
FROM_HOST = 2**22  # so many numbers cost less than compiling a program for their shape
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


@dataclasses.dataclass(frozen=True)
class Line:
    """num_rows and num_edges are 0 for real inputs, whose sizes their files give."""

    op: str
    pattern: str
    num_rows: int
    num_edges: int
    width: int
    dtype: str = "float32"
    group: str = "wide"

    @property
    def moves(self) -> str:
        """Return "gather" or "scatter"."""
        return OPS[self.op]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.width * DTYPES[self.dtype]

    @property
    def title(self) -> str:
        """A short name for progress bars and errors."""
        return f"{self.op} {self.pattern} {self.num_edges:,} x {self.width} {self.dtype}"


def random_normal(seed: int, shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Normal numbers, made where that is quick: JAX's generator is slow on a CPU and to compile."""
    if jax.default_backend() != "cpu" and math.prod(shape) > FROM_HOST:
        return jax.random.normal(jax.random.key(seed), shape, jnp.dtype(dtype))
    wide = np.float64 if dtype == "float64" else np.float32
    numbers = np.random.default_rng(seed).standard_normal(shape, wide)
    return jnp.asarray(numbers.astype(jnp.dtype(dtype), copy=False))


class Inputs:
    """Arrays of a line, shared by all implementations and made when first asked for."""

    def __init__(self, line: Line, topology: Topology, seed: int, copies: int):
        self.line, self.topology = line, topology
        self._seed, self._copies = seed, copies

    @cached_property
    def operands(self) -> list[jax.Array]:
        """Random operands [rows, width] ([rows] for width 1); several where they rotate."""
        t, line = self.topology, self.line
        rows = t.num_rows if line.moves == "gather" else t.num_edges
        shape = (rows,) if line.width == 1 else (rows, line.width)
        seeds = range(self._seed, self._seed + self._copies)
        return [random_normal(seed, shape, line.dtype) for seed in seeds]

    @cached_property
    def ids(self) -> jax.Array:
        """The ids on the device."""
        return jnp.asarray(self.topology.ids)

    @cached_property
    def plan(self) -> Any:
        """The plan of jax_index."""
        import jax_index

        return jax_index.make_plan(self.topology.ids, self.topology.num_rows)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the op's result."""
        t, line = self.topology, self.line
        rows = t.num_edges if line.moves == "gather" else t.num_rows
        return (rows,) if line.width == 1 else (rows, line.width)

    def buffer(self) -> jax.Array:
        """A fresh array for a result."""
        return jnp.zeros(self.result_shape, jnp.dtype(self.line.dtype))

    def host_operand(self) -> np.ndarray:
        """The first operand as a NumPy array."""
        return np.asarray(self.operands[0])
