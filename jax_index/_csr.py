# SPDX-License-Identifier: Apache-2.0
"""The arrays of a plan: the CSR of edges by row, and the schedule of its long rows."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _native

# The schedule of long rows; the same numbers as in cpp/core/order.h and csr.h.
LONG_ROW = 128
GROUP = 1024


class HostArrays(NamedTuple):
    """What a builder of the host found, in NumPy arrays."""

    ids: np.ndarray
    indptr: np.ndarray
    perm: np.ndarray
    tasks: np.ndarray
    identity: bool
    no_long_row: bool
    first_bad: int  # the position of the first id that names no row, or -1


def num_tasks(num_edges: int) -> int:
    """Return the length of the list of long-row tasks, its end included."""
    return num_edges // (LONG_ROW + 1) + 1


def from_ids(ids: np.ndarray, num_rows: int, drop: bool) -> HostArrays:
    """Sort `ids` of any native integer dtype; without `drop` the first bad one ends it."""
    m = ids.size
    out, perm = np.empty(m, np.int32), np.empty(m, np.int32)
    indptr, tasks = np.empty(num_rows + 1, np.int32), np.empty(2 * num_tasks(m), np.int32)
    module = _native.CPU.module
    if module is not None:
        bad, identity, no_long_row = module.build_plan(ids, drop, out, indptr, perm, tasks)
    else:
        bad, identity, no_long_row = _build_numpy(ids, num_rows, out, indptr, perm, tasks)
    pairs = tasks.reshape(-1, 2)
    return HostArrays(out, indptr, perm, pairs, bool(identity), bool(no_long_row), int(bad))


def from_bounds(bounds: np.ndarray) -> HostArrays:
    """Return the arrays of edges that are grouped already; `bounds` are checked row bounds."""
    m = int(bounds[-1])
    ids, perm = np.empty(m, np.int32), np.empty(m, np.int32)
    indptr, tasks = bounds.astype(np.int32), np.empty(2 * num_tasks(m), np.int32)
    module = _native.CPU.module
    if module is not None:
        _, identity, no_long_row = module.build_plan_from_indptr(ids, indptr, perm, tasks)
    else:
        ids[:] = np.repeat(np.arange(bounds.size - 1), np.diff(indptr))
        perm[:] = np.arange(m)
        identity, no_long_row = True, fill_tasks(indptr, tasks)
    pairs = tasks.reshape(-1, 2)
    return HostArrays(ids, indptr, perm, pairs, bool(identity), bool(no_long_row), -1)


def _build_numpy(
    ids: np.ndarray,
    num_rows: int,
    out_ids: np.ndarray,
    indptr: np.ndarray,
    perm: np.ndarray,
    tasks: np.ndarray,
) -> tuple[int, bool, bool]:
    """Do what the compiled builder does, where there is none."""
    bad = (ids >= num_rows) | (ids < 0)
    first_bad = int(np.argmax(bad)) if bad.any() else -1
    out_ids[:] = np.where(bad, -1, ids).astype(np.int32)
    rows = np.where(bad, num_rows, out_ids)
    perm[:] = np.argsort(rows, kind="stable")
    indptr[0] = 0
    np.cumsum(np.bincount(rows, minlength=num_rows + 1)[:num_rows], out=indptr[1:])
    identity = bool((np.diff(rows) >= 0).all())
    return first_bad, identity, fill_tasks(indptr, tasks)


def fill_tasks(indptr: np.ndarray, tasks: np.ndarray) -> bool:
    """Write the schedule of long rows; return whether there is none."""
    lengths = np.diff(indptr)
    giant = np.flatnonzero(lengths > GROUP)
    long = np.flatnonzero((lengths > LONG_ROW) & (lengths <= GROUP))
    rows = np.concatenate([giant, long])
    groups = -(-lengths[rows] // GROUP)
    tasks[:] = -1
    total = int(groups.sum())
    pairs = tasks.reshape(-1, 2)
    pairs[:total, 0] = np.repeat(rows, groups)
    pairs[:total, 1] = np.arange(total) - np.repeat(np.cumsum(groups) - groups, groups)
    return total == 0


def concrete(arrays: Sequence[np.ndarray]) -> list[jax.Array]:
    """Copy arrays to the default device: concrete and committed to nothing, wherever we are called.

    In a traced program, or under a mesh, JAX would make tracers or arrays that belong to the mesh.
    A thread of its own has neither; it is given the caller's default device.
    """
    device = getattr(jax.config, "jax_default_device", None)
    out = _put(arrays, device)
    if any(isinstance(a, jax.core.Tracer) or a.committed for a in out):
        with ThreadPoolExecutor(1) as clean:
            out = clean.submit(_put, arrays, device).result()
    return out


def _put(arrays: Sequence[np.ndarray], device: Any) -> list[jax.Array]:
    with jax.default_device(device):
        return [jax.device_put(a) for a in arrays]


def traced_rows(ids: Any, num_rows: int) -> Any:
    """Return traced ids as int32, -1 where they name no row."""
    if jnp.iinfo(ids.dtype).bits < 32:
        ids = ids.astype(jnp.int32)
    # Compared in a type that holds both; only ids that fit are cast.
    inside = (ids >= 0) & (ids < jnp.asarray(num_rows, ids.dtype))
    fitting = jnp.where(inside, ids, jnp.zeros_like(ids)).astype(jnp.int32)
    return jnp.where(inside, fitting, -1)


def padded(arrays: Any, num_edges: int, num_rows: int, xp: Any) -> tuple[Any, Any, Any, Any]:
    """Append edges that belong to no row, and rows without edges; `xp` is numpy or jax.numpy.

    Such edges stand last in the caller's order, and so behind all others in `perm`.
    """
    ids, indptr, perm, tasks = arrays
    m, n, room = ids.shape[0], indptr.shape[0] - 1, num_tasks(num_edges) - tasks.shape[0]
    last = xp.broadcast_to(indptr[-1:], (num_rows - n,))
    return (
        minus_ones(ids, num_edges - m, xp),
        xp.concatenate([indptr, last]),
        xp.concatenate([perm, xp.arange(m, num_edges, dtype=xp.int32)]),
        xp.concatenate([tasks, xp.full((room, 2), -1, xp.int32)]),
    )


def minus_ones(array: Any, count: int, xp: Any) -> Any:
    """Append -1 `count` times."""
    return xp.concatenate([array, xp.full(count, -1, xp.int32)])
