# SPDX-License-Identifier: Apache-2.0
"""The largest and the smallest edge of each row, and the equal shares of ties."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _ad, _primitive
from jax_index._plan import IndexPlan
from jax_index.ops import pointwise, row_fold
from jax_index.ops.row_map import row_map


def _abstract(y: Any, *plan: Any, **p: Any) -> Any:
    return row_fold.fold_abstract([y], plan, p["axis"], p["plan_axes"], p["no_long_row"])


def _reference(y: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, **p: Any) -> Any:
    del ids, tasks
    smallest = p["smallest"]

    def one(data: Any, plan: Any, axis: int) -> Any:
        (y,) = data
        start = identity(y.dtype, smallest)
        return row_fold.folded(y, plan, axis, start, "min" if smallest else "max")

    out = _primitive.over_plans(one, [y], [indptr, perm], p["axis"], p["plan_axes"])
    return [out, row_fold.workspace(out, perm, p["axis"], p["no_long_row"])]


def identity(dtype: Any, smallest: bool) -> Any:
    """Return what the fold of no element is: the least value, or for a minimum the largest."""
    dtype = jnp.dtype(dtype)
    if dtype == np.bool_:
        return np.asarray(smallest)
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return np.asarray(int(info.max if smallest else info.min)).astype(dtype)
    with np.errstate(all="ignore"):
        infinite = np.asarray(np.inf if smallest else -np.inf).astype(dtype)
    if np.isinf(infinite.astype(np.float64)):
        return infinite
    limits = jnp.finfo(dtype)
    return np.asarray(limits.max if smallest else limits.min, dtype)


def _attributes(smallest: bool, **p: Any) -> dict[str, Any]:
    return {**row_fold.plan_attributes(**p), "smallest": np.bool_(smallest)}


segment_extremum_p = _primitive.define(
    "segment_extremum",
    abstract=_abstract,
    reference=_reference,
    attributes=_attributes,
    batch=partial(row_fold.batch, "segment_extremum", 1),
)


def plain(data: jax.Array, plan: IndexPlan, smallest: bool) -> jax.Array:
    """Return the extremum of the edges of each row; no derivative."""
    if data.dtype == np.bool_:
        # An empty row is all ones as a byte: true.
        return plain(data.astype(jnp.uint8), plan, smallest).astype(jnp.bool_)
    out, _ = segment_extremum_p.bind(
        data,
        *plan.arrays,
        **row_fold.walk(plan),
        smallest=smallest,
    )
    return out


@_ad.custom_vjp(nondiff_argnums=(2,))
def extremum(data: jax.Array, plan: IndexPlan, smallest: bool) -> jax.Array:
    """Return the extremum of the edges of each row; ties share its gradient equally."""
    return plain(data, plan, smallest)


def _extremum_fwd(data: jax.Array, plan: IndexPlan, smallest: bool) -> Any:
    out = extremum(data, plan, smallest)
    return out, (data, out, plan)


def _extremum_bwd(smallest: bool, saved: Any, ct: Any) -> Any:
    del smallest
    data, out, plan = saved
    if ct.dtype == jax.dtypes.float0:
        return None, None
    data, out = jax.lax.stop_gradient((data, out))
    ties = row_map("ties", data, plan, row=out, dtype=pointwise.wide(data.dtype))
    return _share(ct, data, out, ties, plan), None


extremum.defvjp(_extremum_fwd, _extremum_bwd)


@_ad.custom_vjp(linear=((0,),))
def _share(
    ct: jax.Array, data: jax.Array, out: jax.Array, ties: jax.Array, plan: IndexPlan
) -> jax.Array:
    """Give each edge that is its row's extremum an equal share of the row's cotangent."""
    return pointwise.apply("tie_share", [data], [out, ct, ties], plan=plan, dtype=data.dtype)


def _share_fwd(ct: Any, data: Any, out: Any, ties: Any, plan: Any) -> Any:
    return _share(ct, data, out, ties, plan), (data, out, ties, plan)


def _share_bwd(saved: Any, ct: Any) -> Any:
    return _collect(ct, *saved), None, None, None, None


@_ad.custom_vjp(linear=((0,),))
def _collect(
    edges: jax.Array, data: jax.Array, out: jax.Array, ties: jax.Array, plan: IndexPlan
) -> jax.Array:
    """Return the mean of `edges` over the ties of each row: the adjoint of _share."""
    total = row_map("tie_product", data, plan, row=out, other=edges, dtype=ties.dtype)
    return pointwise.apply("divide_or_zero", [total, ties], dtype=data.dtype)


def _collect_fwd(edges: Any, data: Any, out: Any, ties: Any, plan: Any) -> Any:
    return _collect(edges, data, out, ties, plan), (data, out, ties, plan)


def _collect_bwd(saved: Any, ct: Any) -> Any:
    return _share(ct, *saved), None, None, None, None


_share.defvjp(_share_fwd, _share_bwd)
_collect.defvjp(_collect_fwd, _collect_bwd)
