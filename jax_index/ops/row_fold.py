# SPDX-License-Identifier: Apache-2.0
"""What every op that folds the edges of rows shares: result shapes, workspace, batching."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_index import _primitive
from jax_index._plan import GROUP, IndexPlan


def batch(op: str, num_data: int, operands: list[Any], axes: list[Any], **p: Any) -> Any:
    """Bring a batch axis into a call of `num_data` data operands, followed by those of a plan."""
    data, plan, axis, plan_axes, place = _primitive.batch_data_and_plan(
        operands[:num_data],
        axes[:num_data],
        operands[num_data:],
        axes[num_data:],
        op=op,
        axis=p["axis"],
        plan_axes=p["plan_axes"],
    )
    # The workspace of a batched sum is nobody's batch.
    out_axes: list[int | None] = [place] if op == "gather" else [place, None]
    return [*data, *plan], {**p, "axis": axis, "plan_axes": plan_axes}, out_axes


def fold_abstract(data: list[Any], plan: Any, axis: int, plan_axes: Any, no_long: bool) -> Any:
    """Return the avals of a row fold of arrays of one rank: the rows, and the workspace."""
    ids, indptr, perm, tasks = plan
    n, m = indptr.shape[-1] - 1, perm.shape[-1]
    shapes = [(*d.shape[:axis], 0, *d.shape[axis + 1 :]) for d in data]
    wide = tuple(_primitive.shared_size(*sizes) for sizes in zip(*shapes, strict=True))
    leaves = [(ids, 1), (indptr, 1), (perm, 1), (tasks, 2)]
    shape = _primitive.result_shape(wide, axis, n, plan_axes, leaves)
    out = _primitive.result_aval(data[-1], shape, axis)
    room = workspace_bytes(out, m, axis, no_long)
    return [out, _primitive.result_aval(data[-1], (room,), None, jnp.dtype("uint8"))]


def workspace_bytes(out: Any, num_edges: int, axis: int, no_long_row: bool) -> int:
    """Return the room for the partial sums of rows beyond one group; XLA plans its memory."""
    if no_long_row:
        return 0
    width = math.prod(out.shape[:axis] + out.shape[axis + 1 :])
    # A four-bit float arrives as a byte and is summed in float32.
    item = max(4, out.dtype.itemsize)
    return (num_edges // (GROUP // 2) + 1) * width * item


def plan_attributes(axis: int, plan_axes: Any, identity: bool, no_long_row: bool) -> dict[str, Any]:
    """Return the attributes of every kernel that walks the rows of a plan."""
    return {
        "axis": np.int64(axis),
        "plan_axes": _primitive.plan_axes_attribute(plan_axes),
        "identity": np.bool_(identity),
        "no_long_row": np.bool_(no_long_row),
    }


def walk(plan: IndexPlan, axis: int = 0) -> dict[str, Any]:
    """Return the parameters of a primitive that walks the rows of one plan."""
    return {
        "axis": axis,
        "plan_axes": (),
        "identity": plan.identity,
        "no_long_row": plan.no_long_row,
    }


# --- Pure JAX -----------------------------------------------------------------------------------


def _owners(indptr: Any, perm: Any) -> Any:
    """Return the row at each position of the CSR."""
    place = jnp.arange(perm.shape[0], dtype=jnp.int32)
    return (jnp.searchsorted(indptr, place, side="right") - 1).astype(jnp.int32)


def edge_rows(indptr: Any, perm: Any) -> Any:
    """Return the row of each edge; of an edge that belongs to none, whatever."""
    return jnp.zeros_like(perm).at[perm].set(_owners(indptr, perm), mode="drop")


def folded(y: Any, plan: Any, axis: int, start: Any, method: str) -> Any:
    """Fold the rows of y from `start` by a method of ``jnp.ndarray.at``; plan (indptr, perm)."""
    indptr, perm = plan
    n, m = indptr.shape[0] - 1, perm.shape[0]
    inside = jnp.arange(m, dtype=jnp.int32) < indptr[n]
    row = jnp.where(inside, _owners(indptr, perm), n)
    ordered = jnp.take(jnp.moveaxis(y, axis, 0), perm, axis=0, mode="clip")
    total = jnp.full((n, *ordered.shape[1:]), start, y.dtype)
    total = getattr(total.at[row], method)(ordered, mode="drop", indices_are_sorted=True)
    return jnp.moveaxis(total, 0, axis)


def row_sums(data: Any, plan: Any, axis: int) -> Any:
    """Sum rows: data [y], plan (indptr, perm)."""
    (y,) = data
    return folded(wide_sums(y), plan, axis, 0, "add")


def wide_sums(y: Any) -> Any:
    """Return values in the type that they are summed in."""
    narrow = jnp.issubdtype(y.dtype, jnp.floating) and y.dtype.itemsize < 4
    return y.astype(jnp.float32) if narrow else y


def workspace(out: Any, perm: Any, axis: int, no_long_row: bool) -> Any:
    """Return the workspace of a fold in pure JAX, which needs none."""
    return jnp.zeros(workspace_bytes(out, perm.shape[-1], axis, no_long_row), jnp.uint8)
