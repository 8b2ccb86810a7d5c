# SPDX-License-Identifier: Apache-2.0
"""The product of the edges of each row."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_index import _ad, _primitive
from jax_index._plan import LONG_ROW, IndexPlan
from jax_index.ops import pointwise, row_fold, rows


def _abstract(y: Any, *plan: Any, **p: Any) -> Any:
    return row_fold.fold_abstract([y], plan, p["axis"], p["plan_axes"], p["no_long_row"])


def _reference(y: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, **p: Any) -> Any:
    del ids, tasks

    def one(data: Any, plan: Any, axis: int) -> Any:
        (y,) = data
        return row_fold.folded(y, plan, axis, 1, "mul")

    out = _primitive.over_plans(one, [y], [indptr, perm], p["axis"], p["plan_axes"])
    return [out, row_fold.workspace(out, perm, p["axis"], p["no_long_row"])]


segment_prod_p = _primitive.define(
    "segment_prod",
    abstract=_abstract,
    reference=_reference,
    attributes=row_fold.plan_attributes,
    batch=partial(row_fold.batch, "segment_prod", 1),
)


def plain(data: jax.Array, plan: IndexPlan) -> jax.Array:
    """Return the product of the edges of each row, of 32 or 64-bit numbers; no derivative."""
    out, _ = segment_prod_p.bind(
        data,
        *plan.arrays,
        **row_fold.walk(plan),
    )
    return out


@_ad.custom_vjp
def product(data: jax.Array, plan: IndexPlan) -> jax.Array:
    """Return the product of the edges of each row."""
    return plain(data, plan)


def _product_fwd(data: jax.Array, plan: IndexPlan) -> Any:
    return product(data, plan), (data, plan)


def _product_bwd(saved: Any, ct: Any) -> Any:
    data, plan = saved
    if ct.dtype == jax.dtypes.float0:
        return None, None
    grad = pointwise.multiply(rows.gather(ct, plan), _others(data, plan))
    return pointwise.rows_only(grad, plan), None


product.defvjp(_product_fwd, _product_bwd)


@_ad.custom_vjp
def _others(data: jax.Array, plan: IndexPlan) -> jax.Array:
    """Return the product of the other edges of an edge's row.

    That of the row without its zeros, divided by the edge; where the row has a zero, only the one
    zero gets it; where it has two, nobody does.
    """
    zero = _is_zero(data)
    zeros = rows.gather(rows.sum_rows(zero.astype(jnp.int32), plan), plan)
    filled = jnp.where(zero, jnp.ones((), data.dtype), data)
    rest = rows.gather(plain(filled, plan), plan)
    quotient = pointwise.apply("divide_or_zero", [rest, filled])
    none = jnp.zeros((), data.dtype)
    single = jnp.where(zero & (zeros == 1), rest, none)
    return jnp.where(zeros == 0, quotient, single)


def _is_zero(x: jax.Array) -> jax.Array:
    """Whether x is 0 of either sign; a comparison of floats may take subnormal ones for it."""
    word = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    return word << 1 == 0


def _others_fwd(data: jax.Array, plan: IndexPlan) -> Any:
    return _others(data, plan), (data, plan)


def _others_bwd(saved: Any, ct: Any) -> Any:
    data, plan = saved
    return jax.vjp(lambda x: _others_by_scan(x, plan), data)[1](ct)[0], None


_others.defvjp(_others_fwd, _others_bwd)


def _others_by_scan(data: jax.Array, plan: IndexPlan) -> jax.Array:
    """Return the same product without a division: its derivatives of any order are right.

    What stands before an edge in its row, times what stands after it, each by doubling.
    """
    m = plan.num_edges
    position = jnp.zeros(m, jnp.int32).at[plan.perm].set(jax.lax.iota(jnp.int32, m), mode="drop")
    row = jnp.clip(plan.ids, 0, plan.num_rows - 1)
    first = jnp.take(plan.indptr, row, mode="clip")
    last = jnp.take(plan.indptr, row + 1, mode="clip")
    last = jnp.where(plan.ids >= 0, last, first)

    def away(steps: int) -> jax.Array:
        """Return the edge that many places on in the row, -1 where there is none."""
        at = position + steps
        edge = jnp.take(plan.perm, at, mode="clip")
        return jnp.where((at >= first) & (at < last), edge, -1)

    longest = min(m, LONG_ROW) if plan.no_long_row else m
    sides = []
    for sign, side in zip((-1, 1), pointwise.fork(data), strict=True):
        total, steps = side, 1
        while steps < longest:
            ends = away(sign * steps), away(-sign * steps)
            total = pointwise.multiply(*_with_shifted(total, *ends))
            steps *= 2
        sides.append(_shifted(total, away(sign), away(-sign), 1))
    return pointwise.multiply(*sides)


@_ad.custom_vjp(nondiff_argnums=(3,), linear=((0,),))
def _shifted(x: jax.Array, source: jax.Array, target: jax.Array, fill: int) -> jax.Array:
    """Return x of the edge `source`, `fill` where there is none; `target` is the inverse."""
    there = _primitive.along(source >= 0, x.ndim)
    taken = jnp.take(x, source, axis=0, mode="clip")
    return jnp.where(there, taken, jnp.asarray(fill, x.dtype))


_shifted.defvjp(
    lambda x, source, target, fill: (_shifted(x, source, target, fill), (source, target)),
    lambda fill, ends, ct: (_shifted(ct, ends[1], ends[0], 0), None, None),
)


def _with_shifted(x: jax.Array, source: jax.Array, target: jax.Array) -> Any:
    """Return x and x of the edge `source`; our own kernel adds their cotangents."""
    first, second = pointwise.fork(x)
    return first, _shifted(second, source, target, 1)
