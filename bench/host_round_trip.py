# SPDX-License-Identifier: Apache-2.0
"""The host-round-trip column: NumPy behind `pure_callback`, summing in the contract's order.

A row's edges, in the caller's order, are cut into chunks of 32 from the row's start; a chunk is
folded left to right from +0; the chunk results are cut and folded in the same way, up to one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

CHUNK = 32


@dataclasses.dataclass(frozen=True)
class _Level:
    """One round of the fold: chunk c takes `length[c]` consecutive inputs from `start[c]` on.

    Chunks stand in order of falling length, so that those still open after j inputs are the first
    `open_after[j]`; `place` puts their results back into row order.
    """

    start: np.ndarray
    open_after: np.ndarray
    place: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class HostPlan:
    """ids [m] of n rows and the fold's schedule; static under jit, equal to itself alone."""

    ids: np.ndarray
    num_rows: int
    perm: np.ndarray
    levels: tuple[_Level, ...]

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each row starts in `perm`, and how many edges it has."""
        counts = np.bincount(self.ids, minlength=self.num_rows)
        return np.cumsum(counts) - counts, counts


jax.tree_util.register_pytree_node(HostPlan, lambda plan: ((), plan), lambda plan, _: plan)


def host_plan(ids: np.ndarray, num_rows: int) -> HostPlan:
    """Sort the edges by row, stable, and lay out every level of the fold."""
    ids = np.asarray(ids, np.int32)
    counts = np.bincount(ids, minlength=num_rows)
    levels = []
    while True:
        level, counts = _level(counts)
        levels.append(level)
        if counts.max(initial=1) <= 1 and counts.min(initial=1) == 1:
            break
    return HostPlan(ids, num_rows, np.argsort(ids, kind="stable"), tuple(levels))


def _level(counts: np.ndarray) -> tuple[_Level, np.ndarray]:
    """The level that folds rows of `counts` consecutive inputs, and the counts it leaves.

    An empty row keeps one chunk of length 0: its +0 is the row's sum.
    """
    chunks = np.maximum(-(-counts // CHUNK), 1)
    row = np.repeat(np.arange(len(counts)), chunks)
    within = np.arange(len(row)) - np.repeat(np.cumsum(chunks) - chunks, chunks)
    start = (np.cumsum(counts) - counts)[row] + within * CHUNK
    length = np.minimum(counts[row] - within * CHUNK, CHUNK)
    order = np.argsort(-length, kind="stable")
    open_after = np.searchsorted(-length[order], -np.arange(length.max(initial=0)), side="left")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return _Level(start[order], open_after, place), chunks


def row_sums(y: np.ndarray, plan: HostPlan) -> np.ndarray:
    """Sums [n, ...] of the rows of y [m, ...] by `plan`, in the contract's order.

    Floats of 16 bits are summed in float32 and rounded once.
    """
    wide = np.float32 if y.dtype.itemsize < 4 else y.dtype
    values = y[plan.perm].astype(wide, copy=False)
    for level in plan.levels:
        folded = np.zeros((len(level.start), *y.shape[1:]), wide)
        for j, count in enumerate(level.open_after):
            folded[:count] += values[level.start[:count] + j]
        values = folded[level.place]
    return values.astype(y.dtype, copy=False)


def row_maxima(y: np.ndarray, plan: HostPlan) -> np.ndarray:
    """Largest entries [n, ...] of the rows of y [m, ...]; -inf where a row has none."""
    out = np.full((plan.num_rows, *y.shape[1:]), -np.inf, y.dtype)
    starts, counts = plan.rows
    some = counts > 0
    if some.any():
        out[some] = np.maximum.reduceat(y[plan.perm], starts[some], axis=0)
    return out


@functools.cache
def _thread() -> ThreadPoolExecutor:
    """A thread of our own: XLA's flush subnormals to zero, and so would NumPy in them.

    A thread inherits that mode from its creator, hence the first call must be the main thread's.
    """
    pool = ThreadPoolExecutor(1, "host-round-trip")
    pool.submit(int).result()
    return pool


def _call(function: Callable[..., Any], like: jax.ShapeDtypeStruct, x: jax.Array) -> jax.Array:
    pool = _thread()

    def on_host(operand: Any) -> np.ndarray:
        return pool.submit(lambda: function(np.asarray(operand))).result()

    return jax.pure_callback(on_host, like, x)


@jax.custom_vjp
def host_gather(x: jax.Array, plan: HostPlan) -> jax.Array:
    """Rows x[ids]: [n, ...] -> [m, ...]."""
    like = jax.ShapeDtypeStruct((len(plan.ids), *x.shape[1:]), x.dtype)
    return _call(lambda rows: rows[plan.ids], like, x)


@jax.custom_vjp
def host_scatter_add(y: jax.Array, plan: HostPlan) -> jax.Array:
    """Row sums of y: [m, ...] -> [n, ...]."""
    like = jax.ShapeDtypeStruct((plan.num_rows, *y.shape[1:]), y.dtype)
    return _call(lambda rows: row_sums(rows, plan), like, y)


def host_segment_max(y: jax.Array, plan: HostPlan) -> jax.Array:
    """Row maxima of y: [m, ...] -> [n, ...]; has no gradient."""
    like = jax.ShapeDtypeStruct((plan.num_rows, *y.shape[1:]), y.dtype)
    return _call(lambda rows: row_maxima(rows, plan), like, y)


host_gather.defvjp(
    lambda x, plan: (host_gather(x, plan), plan),
    lambda plan, ct: (host_scatter_add(ct, plan), None),
)
host_scatter_add.defvjp(
    lambda y, plan: (host_scatter_add(y, plan), plan),
    lambda plan, ct: (host_gather(ct, plan), None),
)
