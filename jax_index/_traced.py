# SPDX-License-Identifier: Apache-2.0
"""Plans of traced ids: sorted where the program runs, with integers alone."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jax_index import _native
from jax_index._csr import GROUP, LONG_ROW, num_tasks


def from_traced_rows(rows: Any, num_rows: int) -> tuple[Any, Any, Any, Any]:
    """Return the arrays of the plan of int32 ids, -1 where there is no row."""
    indptr, perm, tasks = plan_of_ids_p.bind(rows, num_rows=num_rows)
    return rows, indptr, perm, tasks


# XLA's sort is a radix sort on a GPU, and slow on a CPU: there the host's own counting sort runs.
plan_of_ids_p = Primitive("jax_index_plan_of_ids")
plan_of_ids_p.multiple_results = True


@plan_of_ids_p.def_abstract_eval
def _avals(rows: Any, *, num_rows: int) -> Any:
    from jax_index._primitive import result_aval  # which needs plans itself

    *lead, m = rows.shape
    shapes = (*lead, num_rows + 1), (*lead, m), (*lead, num_tasks(m), 2)
    return [result_aval(rows, shape, None) for shape in shapes]


_compiled = jax.jit(
    lambda rows, num_rows: plan_of_ids_p.bind(rows, num_rows=num_rows), static_argnums=1
)
plan_of_ids_p.def_impl(lambda rows, *, num_rows: _compiled(rows, num_rows))


def _batch(operands: Any, axes: Any, *, num_rows: int) -> Any:
    (rows,), (at,) = operands, axes
    out = plan_of_ids_p.bind(jnp.moveaxis(rows, at, 0), num_rows=num_rows)
    return out, [0] * len(out)


batching.primitive_batchers[plan_of_ids_p] = _batch


def _reference(rows: Any, *, num_rows: int) -> Any:
    if rows.ndim > 1:
        return jax.vmap(lambda each: _reference(each, num_rows=num_rows))(rows)
    m = rows.shape[0]
    keys = jnp.where(rows < 0, num_rows, rows)
    # Positions are carried through the sort: stable, with no look-up after it.
    order, perm = jax.lax.sort(
        (keys, jax.lax.iota(jnp.int32, m)), dimension=0, is_stable=True, num_keys=1
    )
    indptr = _traced_bounds(order, num_rows)
    return [indptr, perm, _traced_tasks(indptr, m)]


_in_jax = mlir.lower_fun(_reference, multiple_results=True)
_by_host = _native.lowering("plan_of_ids", _native.CPU, _reference)


def _lower_cpu(ctx: Any, rows: Any, *, num_rows: int) -> Any:
    if _native.CPU.module is None:
        return _in_jax(ctx, rows, num_rows=num_rows)
    return _by_host(ctx, rows, attributes={}, num_rows=num_rows)


mlir.register_lowering(plan_of_ids_p, _lower_cpu, platform="cpu")
mlir.register_lowering(plan_of_ids_p, _in_jax)


def _traced_bounds(order: jax.Array, num_rows: int) -> jax.Array:
    """Return where each row starts in sorted keys; a row without edges where the next one does."""
    m = order.shape[0]
    starts = jnp.concatenate([jnp.ones(min(m, 1), bool), order[1:] != order[:-1]])
    # Written by the first edge of each row alone, then filled from behind: a search for every row
    # takes ten times as long on a GPU.
    row = jnp.where(starts, order, num_rows)
    first = jnp.full(num_rows, m, jnp.int32)
    first = first.at[row].set(jax.lax.iota(jnp.int32, m), mode="drop", unique_indices=True)
    kept = jnp.sum(order < num_rows, dtype=jnp.int32)
    return jax.lax.cummin(jnp.append(first, kept), reverse=True)


def _traced_tasks(indptr: jax.Array, m: int) -> jax.Array:
    count = num_tasks(m)
    lengths = jnp.diff(indptr)
    giant = lengths > GROUP
    # Rounded up without a sum that could overflow.
    groups = jnp.where(giant, (lengths - 1) // GROUP + 1, 0)
    single = (lengths > LONG_ROW) & ~giant
    giant_end = jnp.cumsum(groups, dtype=jnp.int32)
    total_giant = jnp.sum(groups, dtype=jnp.int32)
    single_end = total_giant + jnp.cumsum(single, dtype=jnp.int32)
    first = jnp.where(giant, giant_end - groups, jnp.where(single, single_end - 1, count))
    n = lengths.shape[0]
    owner = jnp.full(count, -1, jnp.int32)
    owner = owner.at[first].set(jax.lax.iota(jnp.int32, n), mode="drop")
    # Each task belongs to the last row that starts at or before it.
    position = jax.lax.iota(jnp.int32, count)
    start = jax.lax.cummax(jnp.where(owner >= 0, position, -1))
    total = total_giant + jnp.sum(single, dtype=jnp.int32)
    used = position < total
    row = jnp.where(used, owner[jnp.maximum(start, 0)], -1)
    group = jnp.where(used, position - start, -1)
    return jnp.stack([row, group], axis=-1).astype(jnp.int32)
