# SPDX-License-Identifier: Apache-2.0
"""The product of the edges of each row."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _ad, _primitive
from jax_index._plan import LONG_ROW, IndexPlan
from jax_index.ops import pointwise, row_fold, rows


def _pair(dtype: Any) -> Any:
    """Return the dtype of two numbers of `dtype`: what is kept of a product of its own range."""
    return jnp.dtype("complex128" if dtype == np.float64 else "complex64")


def _abstract(y: Any, *plan: Any, scaled: bool, **p: Any) -> Any:
    if scaled:
        y = y.update(dtype=_pair(y.dtype), weak_type=False)
    return row_fold.fold_abstract([y], plan, p["axis"], p["plan_axes"], p["no_long_row"])


def _reference(
    y: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, *, scaled: bool, **p: Any
) -> Any:
    del ids, tasks

    def one(data: Any, plan: Any, axis: int) -> Any:
        (y,) = data
        return _scaled(y, plan, axis) if scaled else row_fold.folded(y, plan, axis, 1, "mul")

    out = _primitive.over_plans(one, [y], [indptr, perm], p["axis"], p["plan_axes"])
    return [out, row_fold.workspace(out, perm, p["axis"], p["no_long_row"])]


def _scaled(y: Any, plan: Any, axis: int) -> Any:
    """Multiply rows as cpp/core/scaled.h does, in pure JAX: pairs of the value and its code."""
    indptr, perm = plan
    n, m = indptr.shape[0] - 1, perm.shape[0]
    ordered = jnp.moveaxis(_primitive.take_rows(y, perm, axis), axis, 0)
    place = jnp.arange(m, dtype=jnp.int32)
    begins = jnp.zeros(m, jnp.int32).at[indptr[:n]].set(indptr[:n], mode="drop")
    first = jax.lax.cummax(begins)

    def step(k: Any, state: Any) -> Any:
        """Put what ends 2^k positions before a product in front of it, inside of its row."""
        value, exponent = state
        at = place - (1 << k)
        at = jnp.where(at >= first, at, -1)
        value, carry = jnp.frexp(_primitive.take_rows(value, at, 0, 1) * value)
        return value * 2, _primitive.take_rows(exponent, at, 0) + exponent + carry - 1

    value, exponent, counts = pointwise.scaled_of(ordered)
    steps = max(m - 1, 0).bit_length()
    value, exponent = jax.lax.fori_loop(0, steps, step, (value, exponent))
    last = jnp.where(indptr[1:] > indptr[:-1], indptr[1:] - 1, -1)
    value = _primitive.take_rows(value, last, 0, 1)
    exponent = jnp.clip(_primitive.take_rows(exponent, last, 0), -4096, 4096)
    by_row = jnp.zeros_like(exponent)
    for k in pointwise.COUNTS:
        total = row_fold.folded((counts >> k) & 1, (indptr, jnp.arange(m)), 0, 0, "add")
        by_row |= jnp.minimum(total, 2) << k
    code = (exponent * 64 + by_row).astype(y.dtype)
    return jnp.moveaxis(jax.lax.complex(value, code), 0, axis)


def _attributes(scaled: bool, **p: Any) -> dict[str, Any]:
    return {**row_fold.plan_attributes(**p), "scaled": np.bool_(scaled)}


segment_prod_p = _primitive.define(
    "segment_prod",
    abstract=_abstract,
    reference=_reference,
    attributes=_attributes,
    batch=partial(row_fold.batch, "segment_prod", 1),
)


def plain(data: jax.Array, plan: IndexPlan, scaled: bool = False) -> jax.Array:
    """Return the product of the edges of each row, of 32 or 64-bit numbers; no derivative.

    `scaled`: pairs of its value and of its code instead, in a complex dtype; see cpp/core/scaled.h.
    """
    out, _ = segment_prod_p.bind(data, *plan.arrays, **row_fold.walk(plan), scaled=scaled)
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

    That of all, with an exponent of its own, divided by the edge: nothing overflows or underflows
    on the way. Zeros, infinities and NaNs are counted instead of multiplied.
    """
    pairs = plain(data, plan, scaled=True)
    row = [jax.lax.real(pairs), jax.lax.imag(pairs)]
    return pointwise.apply("product_of_others", [data], row, plan=plan)


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
