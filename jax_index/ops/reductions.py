# SPDX-License-Identifier: Apache-2.0
"""The rules of the segment reductions: how floats are reduced, and the derivatives.

Floats are reduced in float32 (float64 where they are), by own kernels alone; see
cpp/core/row_items.h and cpp/ops/pointwise.h for the arithmetic.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _ad, _check, _primitive, _storage
from jax_index._fused import fused
from jax_index._plan import IndexPlan
from jax_index.ops import pointwise, rows, segment_extremum, segment_prod
from jax_index.ops.convert import convert
from jax_index.ops.pointwise import wide
from jax_index.ops.row_map import row_map


def check_real(op: str, data: jax.Array, argument: str = "data") -> None:
    """Check that data holds real numbers."""
    if _storage.is_key(data.dtype) or data.dtype == jax.dtypes.float0:
        fix = "Only numbers can be reduced."
        name = "float0" if data.dtype == jax.dtypes.float0 else data.dtype
        _check.fail(TypeError, op, argument, "of a numeric dtype", f"dtype {name}", fix)
    if jnp.issubdtype(data.dtype, jnp.complexfloating):
        fix = "Reduce real and imaginary parts separately."
        _check.fail(TypeError, op, argument, "real", f"dtype {data.dtype}", fix)


def _is_narrow(dtype: Any) -> bool:
    """Whether floats of `dtype` are too narrow for the kernels, which then take float32."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and jnp.finfo(dtype).bits < 16


@functools.cache
def _mean_dtype(dtype: Any, x64: bool) -> Any:
    del x64  # of the key alone: jnp.mean's dtype depends on it
    of = lambda kind: jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), kind)).dtype  # noqa: E731
    # Of two-bit integers JAX makes two-bit integers, which hold no mean.
    return of(dtype) if jnp.issubdtype(of(dtype), jnp.inexact) else of(jnp.dtype("int8"))


def reduce(
    op: str, rule: Any, data: jax.Array, plan: IndexPlan, argument: str = "data"
) -> jax.Array:
    """Apply a rule for floats of 16 bits and more, in jnp.mean's dtype."""
    if rule is mean_rule and jnp.issubdtype(data.dtype, jnp.complexfloating):
        return _complex_mean_jit(data, plan)
    check_real(op, data, argument)
    x64 = getattr(jax.config, "jax_enable_x64", False)
    return _reduce_jit(rule, _mean_dtype(data.dtype, x64), data, plan)


@functools.partial(_ad.jit, static_argnums=(0, 1))
def _reduce_jit(rule: Any, dtype: Any, data: jax.Array, plan: IndexPlan) -> jax.Array:
    floats = convert(data, jnp.float32 if _is_narrow(dtype) else dtype)
    return convert(rule(None, plan, (floats,)), dtype)


def counts(plan: IndexPlan, dtype: Any) -> jax.Array:
    """Return the number of edges of each row."""
    return convert(plan.indptr[1:] - plan.indptr[:-1], dtype)


# --- mean ---------------------------------------------------------------------------------------


@_ad.custom_vjp(linear=((0,),))
def mean(data: jax.Array, plan: IndexPlan) -> jax.Array:
    """Return the mean of the edges of each row, 0 for a row with no edge."""
    return row_map("value", data, plan, mean=True)


@_ad.custom_vjp(linear=((0,),))
def _spread(ct: jax.Array, plan: IndexPlan) -> jax.Array:
    """Divide rows among their edges: the adjoint of mean."""
    count = counts(plan, wide(ct.dtype))
    share = pointwise.apply("divide_or_zero", [ct, count], dtype=ct.dtype)
    return rows.gather(share, plan)


mean.defvjp(lambda data, plan: (mean(data, plan), plan), lambda plan, ct: (_spread(ct, plan), None))
_spread.defvjp(lambda ct, plan: (_spread(ct, plan), plan), lambda plan, g: (mean(g, plan), None))


@_ad.custom_vjp(linear=((0,),))
def _over_counts(total: jax.Array, plan: IndexPlan) -> jax.Array:
    """Divide complex rows by their numbers of edges: its own adjoint."""
    parts = jax.lax.real(total), jax.lax.imag(total)
    count = counts(plan, parts[0].dtype)
    return jax.lax.complex(*(pointwise.apply("divide_or_zero", [part, count]) for part in parts))


_over_counts.defvjp(
    lambda total, plan: (_over_counts(total, plan), plan),
    lambda plan, ct: (_over_counts(ct, plan), None),
)
_complex_mean_jit = _ad.jit(lambda data, plan: _over_counts(rows.sum_rows(data, plan), plan))


def mean_rule(static: Any, plan: IndexPlan, inputs: Any) -> jax.Array:
    """Apply mean."""
    del static
    return mean(inputs[0], plan)


# --- variance and standard deviation ------------------------------------------------------------


def _var_forward(root: bool, plan: IndexPlan, inputs: Any) -> Any:
    (x,) = inputs
    centre = row_map("value", x, plan, mean=True, dtype=wide(x.dtype))
    dtype = wide(x.dtype) if root else x.dtype
    out = row_map("square", x, plan, row=centre, mean=True, dtype=dtype)
    if not root:
        return out, (centre, None)
    deviation = pointwise.apply("sqrt", [out])
    return convert(deviation, x.dtype), (centre, deviation)


def _var_backward(root: bool, plan: IndexPlan, inputs: Any, known: Any, ct: Any) -> Any:
    (x,), (centre, deviation) = inputs, known
    if root:
        ct = pointwise.apply("sqrt_grad", [deviation, ct], dtype=deviation.dtype)
    count = counts(plan, wide(x.dtype))
    grad = pointwise.apply("variance_grad", [x], [centre, ct, count], plan=plan, dtype=x.dtype)
    return [grad]


def _var_composed(root: bool, plan: IndexPlan, inputs: Any) -> jax.Array:
    (x,) = inputs
    first, second = pointwise.fork(pointwise.rows_only(convert(x, wide(x.dtype)), plan))
    centred = pointwise.subtract(first, rows.gather(mean(second, plan), plan))
    out = mean(pointwise.multiply(*pointwise.fork(centred)), plan)
    return convert(pointwise.sqrt(out) if root else out, x.dtype)


_var = fused(_var_forward, _var_backward, _var_composed)


def var_rule(static: Any, plan: IndexPlan, inputs: Any) -> jax.Array:
    """Apply the variance."""
    del static
    return _var(False, plan, inputs)


def std_rule(static: Any, plan: IndexPlan, inputs: Any) -> jax.Array:
    """Apply the standard deviation."""
    del static
    return _var(True, plan, inputs)


# --- softmax and logsumexp ----------------------------------------------------------------------


def _normaliser(x: jax.Array, plan: IndexPlan) -> tuple[jax.Array, jax.Array]:
    """Return the largest edge m of each row, and the sum of exp(x - m)."""
    largest = segment_extremum.plain(x, plan, False)
    return largest, row_map("exp", x, plan, row=largest, dtype=wide(x.dtype))


def exponentials(x: jax.Array, plan: IndexPlan) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return m, exp(x - m) and the sums of that, by ops with rules; m counts as a constant.

    x is 0, or anything finite, at the edges of no row.
    """
    largest = jax.lax.stop_gradient(segment_extremum.plain(jax.lax.stop_gradient(x), plan, False))
    # Edges of no row are below everything, so that nothing of theirs is weighed.
    shift = rows.gather(largest, plan, fill_value=-np.inf)
    p, summed = pointwise.fork(pointwise.exp_below(x, shift))
    return largest, p, rows.sum_rows(summed, plan)


def _softmax_forward(static: Any, plan: IndexPlan, inputs: Any) -> Any:
    (x,) = inputs
    largest, total = _normaliser(x, plan)
    out = pointwise.apply("softmax", [x], [largest, total], plan=plan, dtype=x.dtype)
    return out, (largest, total, out)


def _softmax_backward(static: Any, plan: IndexPlan, inputs: Any, known: Any, ct: Any) -> Any:
    (x,), (largest, total, share) = inputs, known
    full = wide(x.dtype)
    if full != x.dtype:
        share = pointwise.apply("softmax", [x], [largest, total], plan=plan, dtype=full)
    ct = convert(ct, full)
    delta = row_map("product", share, plan, other=ct)
    return [pointwise.apply("softmax_grad", [share, ct], [delta], plan=plan, dtype=x.dtype)]


def _softmax_composed(static: Any, plan: IndexPlan, inputs: Any) -> jax.Array:
    (x,) = inputs
    _, p, total = exponentials(pointwise.rows_only(convert(x, wide(x.dtype)), plan), plan)
    out = pointwise.divide_or_zero(p, rows.gather(total, plan))
    return convert(pointwise.rows_only(out, plan), x.dtype)


softmax_rule = fused(_softmax_forward, _softmax_backward, _softmax_composed)


def _logsumexp_forward(static: Any, plan: IndexPlan, inputs: Any) -> Any:
    (x,) = inputs
    largest, total = _normaliser(x, plan)
    out = pointwise.apply("log_sum", [largest, total], dtype=x.dtype)
    return _or_infinite(out, largest), (largest, total)


def _or_infinite(out: jax.Array, largest: jax.Array) -> jax.Array:
    """Return inf for rows with an infinite entry, whose difference from itself is none."""
    word = jnp.dtype(f"uint{8 * largest.dtype.itemsize}")
    infinite = np.asarray(np.inf, largest.dtype).view(word)
    is_infinite = jax.lax.bitcast_convert_type(largest, word) == infinite
    return jnp.where(is_infinite, jnp.asarray(np.inf, out.dtype), out)


def _logsumexp_backward(static: Any, plan: IndexPlan, inputs: Any, known: Any, ct: Any) -> Any:
    (x,), (largest, total) = inputs, known
    full = wide(x.dtype)
    share = pointwise.apply("softmax", [x], [largest, total], plan=plan, dtype=full)
    return [pointwise.apply("multiply", [share], [ct], plan=plan, dtype=x.dtype)]


def _logsumexp_composed(static: Any, plan: IndexPlan, inputs: Any) -> jax.Array:
    (x,) = inputs
    largest, _, total = exponentials(pointwise.rows_only(convert(x, wide(x.dtype)), plan), plan)
    return convert(_or_infinite(pointwise.log_sum(largest, total), largest), x.dtype)


logsumexp_rule = fused(_logsumexp_forward, _logsumexp_backward, _logsumexp_composed)

# --- extremum and product -----------------------------------------------------------------------


@functools.partial(_ad.jit, static_argnums=(2,))
def _extremum_jit(data: jax.Array, plan: IndexPlan, smallest: bool) -> jax.Array:
    dtype = data.dtype
    narrow = _is_narrow(dtype)
    stored = convert(data, jnp.float32) if narrow else _storage.encode(data)
    out = segment_extremum.extremum(stored, plan, smallest)
    if stored.dtype != dtype:
        # The identity is that of the dtype, not of the one it is stored in.
        empty = _primitive.along(plan.indptr[1:] <= plan.indptr[:-1], out.ndim)
        none = segment_extremum.identity(dtype, smallest).astype(stored.dtype)
        out = jnp.where(empty, none, out)
    return convert(out, dtype) if narrow else _storage.decode(out, data)


def extremum_of(op: str, data: jax.Array, plan: IndexPlan, smallest: bool) -> jax.Array:
    """Return the extremum of each row, of any real dtype."""
    check_real(op, data)
    return _extremum_jit(data, plan, smallest)


@_ad.jit
def _product_jit(data: jax.Array, plan: IndexPlan) -> jax.Array:
    dtype = data.dtype
    if jnp.issubdtype(dtype, jnp.floating):
        floats = convert(data, wide(dtype))
        return convert(segment_prod.product(floats, plan), dtype)
    # Low bits of a product depend on low bits alone.
    signed = not jnp.issubdtype(dtype, jnp.unsignedinteger)
    size = 64 if jnp.iinfo(dtype).bits == 64 else 32
    full = data.astype(f"{'' if signed else 'u'}int{size}")
    return segment_prod.product(full, plan).astype(dtype)


def product_of(op: str, data: jax.Array, plan: IndexPlan) -> jax.Array:
    """Return the product of each row, of any real dtype."""
    rows.check_summable(op, "data", data.dtype)
    check_real(op, data)
    return _product_jit(data, plan)
