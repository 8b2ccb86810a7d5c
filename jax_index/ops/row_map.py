# SPDX-License-Identifier: Apache-2.0
"""Sums over the edges of a row of a function of the edge and of the row; no derivative.

Private: the sums inside mean, variance, softmax and the gradients of an extremum, in the order of
:func:`jax_index.scatter_add` and without an array for the function's values.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _primitive
from jax_index._plan import IndexPlan
from jax_index.ops import pointwise, row_fold

# RowMap of cpp/core/row_fold.h, in its order; x an edge value, y a second one, r the row's own.
MAPS = ("value", "exp", "square", "product", "ties", "tie_product")


def _abstract(y: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, *rest: Any, **p: Any) -> Any:
    axis = p["axis"]
    out, room = row_fold.fold_abstract(
        [y, *rest], (ids, indptr, perm, tasks), axis, p["plan_axes"], p["no_long_row"]
    )
    return [out.update(dtype=jnp.dtype(p["dtype"])), room]


def _reference(y: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, *rest: Any, **p: Any) -> Any:
    del ids, tasks
    data = [v.astype(pointwise.wide(y.dtype)) for v in (y, *rest)]

    def one(data: Any, plan: Any, axis: int) -> Any:
        indptr, perm = plan
        rest = list(data[1:])
        row = rest.pop(0) if p["by_row"] else None
        other = rest.pop(0) if p["by_edge"] else None
        edge_row = row_fold.edge_rows(indptr, perm)
        r = None if row is None else _primitive.take_rows(row, edge_row, axis)
        total = row_fold.row_sums([_MEANING[p["map"]](data[0], other, r)], plan, axis)
        if p["mean"]:
            count = jnp.maximum(jnp.diff(indptr), 1).astype(total.dtype)
            total = total / _primitive.along(count, total.ndim, axis)
        return total

    total = _primitive.over_plans(one, data, [indptr, perm], p["axis"], p["plan_axes"])
    out = total.astype(p["dtype"])
    return [out, row_fold.workspace(out, perm, p["axis"], p["no_long_row"])]


_MEANING: dict[str, Any] = {
    "value": lambda x, y, r: x,
    "exp": lambda x, y, r: pointwise.plain_exp_below(x, r),
    "square": lambda x, y, r: (x - r) ** 2,
    "product": lambda x, y, r: x * y,
    "ties": lambda x, y, r: pointwise.plain_tie(x, r).astype(x.dtype),
    "tie_product": lambda x, y, r: jnp.where(pointwise.plain_tie(x, r), y, 0),
}


def _attributes(map: str, by_row: bool, by_edge: bool, mean: bool, dtype: Any, **p: Any) -> Any:
    del dtype
    return {
        **row_fold.plan_attributes(**p),
        "map": np.int64(MAPS.index(map)),
        "by_row": np.bool_(by_row),
        "by_edge": np.bool_(by_edge),
        "mean": np.bool_(mean),
    }


def _batch(operands: list[Any], axes: list[Any], **p: Any) -> Any:
    data, plan, axis, plan_axes, place = _primitive.batch_data_and_plan(
        [operands[0], *operands[5:]],
        [axes[0], *axes[5:]],
        operands[1:5],
        axes[1:5],
        op="row_map",
        axis=p["axis"],
        plan_axes=p["plan_axes"],
        main=0,
    )
    return [data[0], *plan, *data[1:]], {**p, "axis": axis, "plan_axes": plan_axes}, [place, None]


row_map_p = _primitive.define(
    "row_map",
    abstract=_abstract,
    reference=_reference,
    attributes=_attributes,
    batch=_batch,
)


def row_map(
    map: str,
    x: jax.Array,
    plan: IndexPlan,
    *,
    row: jax.Array | None = None,
    other: jax.Array | None = None,
    mean: bool = False,
    dtype: Any = None,
) -> jax.Array:
    """Sum `map` of edges `x` (and `other`, and the row's `row`) into rows.

    x is a float of 16 bits or more; the others and the result have its dtype or its accumulator's.
    """
    out, _ = row_map_p.bind(
        x,
        *plan.arrays,
        *([] if row is None else [row]),
        *([] if other is None else [other]),
        **row_fold.walk(plan),
        map=map,
        by_row=row is not None,
        by_edge=other is not None,
        mean=mean,
        dtype=jnp.dtype(dtype or x.dtype),
    )
    return out
