# SPDX-License-Identifier: Apache-2.0
"""Elementwise arithmetic with the same bits on every machine.

Private: XLA contracts, flushes and approximates elementwise floats, each back end in its own way;
between their sums the ops of this package and their derivatives compute with these functions alone.
Each is rounded as it is written, in float32 (float64 where an operand is), and once to the dtype of
its result. They are differentiable any number of times in reverse mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _ad, _primitive

# The functions of cpp/ops/pointwise.h, in their order.
FUNCTIONS = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "divide_or_zero",
    "exp",
    "log",
    "sqrt",
    "scale",
    "exp_below",
    "softmax",
    "softmax_grad",
    "log_sum",
    "add_offset",
    "add_constant",
    "tie_share",
    "variance_grad",
    "sqrt_grad",
    "leaky_relu",
    "leaky_relu_grad",
    "clip",
    "clip_grad",
    "add_leaky_relu",
    "add_leaky_relu_grad",
    "attention_score",
    "attention_exp",
    "attention_share",
    "attention_numerator",
    "attention_factor",
    "attention_score_grad",
    "attention_raw_grad",
    "product_of_others",
    "copy",
)
NUMBER = {name: number for number, name in enumerate(FUNCTIONS)}


def _abstract(*operands: Any, dtype: Any, by_row: Any, axis: int, plan_axes: Any, **_: Any) -> Any:
    data = operands[: len(by_row)]
    ids = operands[len(by_row) :]
    rank = max(d.ndim for d in data)
    sizes = [[d.shape[k] for d in data if k < d.ndim] for k in range(rank)]
    wide = tuple(_primitive.shared_size(*s) for s in sizes)
    edges = [d.shape[axis] for d, row in zip(data, by_row, strict=True) if not row]
    count = ids[0].shape[-1] if ids else _primitive.shared_size(*edges)
    leaves = [(leaf, 1) for leaf in ids]
    shape = _primitive.result_shape(wide, axis, count, plan_axes, leaves)
    like = next(d for d in data if d.ndim == rank)
    return [_primitive.result_aval(like, shape, axis, jnp.dtype(dtype))]


def _reference(*operands: Any, function: str, by_row: Any, axis: int, dtype: Any, **p: Any) -> Any:
    data, ids = list(operands[: len(by_row)]), operands[len(by_row) :]
    rank = max(d.ndim for d in data)
    kind = "float64" if any(d.dtype == np.float64 for d in data) else "float32"
    data = [d.reshape(d.shape + (1,) * (rank - d.ndim)).astype(kind) for d in data]

    def one(data: Any, plan: Any, axis: int) -> Any:
        there = None
        if plan:
            (index,) = plan
            there = (index >= 0) & (index < p["num_rows"])
            data = [
                _primitive.take_rows(d, index, axis) if row else d
                for d, row in zip(data, by_row, strict=True)
            ]
        if function.startswith("attention_"):
            present = dict(zip(p["slots"], data, strict=True))
            out = _attention(function, present, *p["parameters"])
        else:
            out = _MEANING[function](*data, *p["parameters"])
        if there is not None:
            out = jnp.where(_primitive.along(there, out.ndim, axis), out, 0)
        return out

    out = _primitive.over_plans(one, data, list(ids), axis, p["plan_axes"])
    return [out.astype(dtype)]


def plain_divide_or_zero(a: Any, b: Any) -> Any:
    """Return a / b, 0 where b is 0, in pure JAX."""
    return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))


def plain_exp_below(x: Any, m: Any) -> Any:
    """Return exp(x - m), 0 where m is -inf, in pure JAX."""
    return jnp.where(jnp.isneginf(m), 0, jnp.exp(x - jnp.where(jnp.isneginf(m), 0, m)))


def plain_tie(x: Any, r: Any) -> Any:
    """Whether x is r, NaN too, in pure JAX."""
    return (x == r) | (jnp.isnan(x) & jnp.isnan(r))


# The bits of a count of zeros, infinities and NaNs: the first one of each.
COUNTS = (0, 2, 4)


def scaled_of(x: Any) -> tuple[Any, Any, Any]:
    """Take floats apart as cpp/core/scaled.h does, in pure JAX: value, exponent, counts."""
    kinds = (x == 0, jnp.isinf(x), jnp.isnan(x))
    counts = sum(kind.astype(jnp.int32) << k for k, kind in zip(COUNTS, kinds, strict=True))
    value, exponent = jnp.frexp(jnp.where(counts == 0, x, jnp.copysign(jnp.ones_like(x), x)))
    return value * 2, exponent - 1, counts


def _product_of_others(x: Any, value: Any, code: Any) -> Any:
    own, exponent, counts = scaled_of(x)
    word = code.astype(jnp.int32)
    zeros, infinities, nans = (((word & 63) - counts) & (3 << k) for k in COUNTS)
    away = jnp.clip((word >> 6) - exponent, -4096, 4096)
    out = jnp.where(zeros > 0, 0, jnp.ldexp(value / own, away))
    infinite = jnp.copysign(jnp.full_like(x, jnp.inf), value / own)
    out = jnp.where(infinities > 0, jnp.where(zeros > 0, jnp.nan, infinite), out)
    return jnp.where(nans > 0, jnp.nan, out)


_MEANING: dict[str, Any] = {
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "divide_or_zero": plain_divide_or_zero,
    "exp": jnp.exp,
    "log": jnp.log,
    "sqrt": jnp.sqrt,
    "scale": lambda x, c: x * c,
    "exp_below": plain_exp_below,
    "softmax": lambda x, m, z: plain_divide_or_zero(plain_exp_below(x, m), z),
    "softmax_grad": lambda a, da, delta: a * (da - delta),
    "log_sum": lambda m, z: jnp.where(z == 0, m, m + jnp.log(jnp.where(z == 0, 1, z))),
    "add_offset": lambda z, m, offset: z + offset * jnp.exp(-m),
    "add_constant": lambda x, c: x + c,
    "tie_share": lambda x, r, ct, n: jnp.where(plain_tie(x, r), ct / n, 0),
    "variance_grad": lambda x, mean, ct, n: ct * 2 * (x - mean) / n,
    "sqrt_grad": lambda s, ct: plain_divide_or_zero(ct, s * 2),
    "leaky_relu": lambda x, slope: jnp.where(x >= 0, x, x * slope),
    "leaky_relu_grad": lambda x, ct, slope: jnp.where(x >= 0, ct, ct * slope),
    "clip": lambda x, low, high: jnp.clip(x, low, high),
    "clip_grad": lambda x, ct, low, high: jnp.where((x < low) | (x > high), 0, ct),
    "add_leaky_relu": lambda x, y, slope: jnp.where(x + y >= 0, x + y, (x + y) * slope),
    "add_leaky_relu_grad": lambda x, y, ct, slope: jnp.where(x + y >= 0, ct, ct * slope),
    "product_of_others": _product_of_others,
    "copy": lambda x: x,
}


def _attention(
    function: str, present: dict[int, Any], scale: float, low: float, high: float
) -> Any:
    """Return what an attention function makes of its operands, by slot."""
    names = ("raw", "multiplier", "bias", "max", "sum", "weight", "cotangent", "delta")
    v = {names[slot]: value for slot, value in present.items()}
    score = v["raw"] * scale * v.get("multiplier", 1) + v.get("bias", 0)
    inside = (score >= low) & (score <= high)
    s = jnp.clip(score, low, high)
    p = plain_exp_below(s, v.get("max", jnp.zeros((), s.dtype)))
    if function in ("attention_score", "attention_exp", "attention_numerator"):
        numerator = p * v.get("weight", 1)
        return {"attention_score": s, "attention_exp": p, "attention_numerator": numerator}[
            function
        ]
    share = plain_divide_or_zero(p, v["sum"])
    if function == "attention_share":
        return share
    if function == "attention_factor":
        return share * v.get("weight", 1)
    ds = jnp.where(inside, share * (v.get("weight", 1) * v["cotangent"] - v["delta"]), 0)
    return ds if function == "attention_score_grad" else ds * v.get("multiplier", 1) * scale


def _attributes(
    function: str,
    slots: tuple[int, ...],
    by_row: tuple[bool, ...],
    indexed: bool,
    num_rows: int,
    axis: int,
    plan_axes: Any,
    parameters: tuple[float, ...],
    dtype: Any,
) -> dict[str, Any]:
    del dtype
    return {
        "axis": np.int64(axis),
        "plan_axes": _primitive.plan_axes_attribute(plan_axes),
        "function": np.int64(NUMBER[function]),
        "indexed": np.bool_(indexed),
        "num_rows": np.int64(num_rows),
        "slots": np.asarray(slots, np.int64),
        "by_row": np.asarray(by_row, np.int64),
        "parameters": np.asarray(parameters, np.float64),
    }


def _batch(operands: list[Any], axes: list[Any], **p: Any) -> Any:
    count = len(p["by_row"])
    ranks = [v.ndim - (a is not None) for v, a in zip(operands[:count], axes[:count], strict=True)]
    data, plan, axis, plan_axes, place = _primitive.batch_data_and_plan(
        operands[:count],
        axes[:count],
        operands[count:],
        axes[count:],
        op="pointwise",
        axis=p["axis"],
        plan_axes=p["plan_axes"],
        main=ranks.index(max(ranks)),
    )
    return [*data, *plan], {**p, "axis": axis, "plan_axes": plan_axes}, [place]


pointwise_p = _primitive.define(
    "pointwise",
    abstract=_abstract,
    reference=_reference,
    attributes=_attributes,
    batch=_batch,
)


def apply(
    function: str,
    edges: Sequence[Any] = (),
    rows: Sequence[Any] = (),
    *,
    plan: Any = None,
    parameters: tuple[float, ...] = (),
    dtype: Any = None,
) -> jax.Array:
    """Apply a function of cpp/ops/pointwise.h to edge arrays, then row arrays; no derivative."""
    given = [(v, False) for v in edges] + [(v, True) for v in rows]
    return apply_slots(function, given, plan=plan, parameters=parameters, dtype=dtype)


def apply_slots(
    function: str,
    given: Sequence[tuple[Any, bool]],
    *,
    plan: Any = None,
    parameters: tuple[float, ...] = (),
    dtype: Any = None,
) -> jax.Array:
    """Apply a function to (array, whether it has rows of nodes) for each of its arguments.

    An array of lower rank has one element for all that lies behind its own axes; an edge array with
    one row has it for all edges; None is an argument that the function can do without. With a plan,
    row arrays are read at the row of each edge, and an edge of no row gets 0; without one, all
    arrays have the same rows. The result has the dtype of the first array where none is given.
    """
    indexed = plan is not None
    slots = tuple(k for k, (v, _) in enumerate(given) if v is not None)
    operands = [given[k][0] for k in slots]
    (out,) = pointwise_p.bind(
        *operands,
        *([plan.ids] if indexed else []),
        function=function,
        slots=slots,
        by_row=tuple(given[k][1] and indexed for k in slots),
        indexed=indexed,
        num_rows=plan.num_rows if indexed else 0,
        axis=0,
        plan_axes=(),
        parameters=tuple(float(p) for p in parameters),
        dtype=jnp.dtype(dtype or operands[0].dtype),
    )
    return out


def wide(dtype: Any) -> Any:
    """Return the dtype that floats of `dtype` are computed in."""
    return jnp.dtype("float64" if jnp.dtype(dtype) == np.float64 else "float32")


def _elementwise(function: str, *operands: Any, parameters: tuple[float, ...] = ()) -> jax.Array:
    """Apply `function` to arrays of one shape, of any rank."""
    shape = operands[0].shape
    if shape == ():
        operands = tuple(v.reshape(1) for v in operands)
    return apply(function, operands, parameters=parameters).reshape(shape)


def rows_only(x: jax.Array, plan: Any) -> jax.Array:
    """Return edges x with 0 at those of no row: nothing of theirs is computed with."""
    there = _primitive.along(plan.ids >= 0, x.ndim)
    return jnp.where(there, x, jnp.zeros((), x.dtype))


# --- The differentiable functions, on arrays of one shape and dtype -------------------------------


@_ad.custom_vjp(linear=((0, 1),))
def add(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a + b; complex numbers part by part."""
    if jnp.issubdtype(a.dtype, jnp.complexfloating):
        parts = ((part(a), part(b)) for part in (jax.lax.real, jax.lax.imag))
        return jax.lax.complex(*(_elementwise("add", *pair) for pair in parts))
    return _elementwise("add", a, b)


add.defvjp(lambda a, b: (add(a, b), None), lambda _, ct: (ct, ct))
_ad.adder = add


@_ad.custom_vjp(linear=((0,),))
def fork(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return x twice: where an op uses it twice, the cotangents are added by our own kernel."""
    return x, x


fork.defvjp(lambda x: ((x, x), None), lambda _, ct: (add(*ct),))


@_ad.custom_vjp(linear=((0, 1),))
def subtract(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a - b."""
    return _elementwise("subtract", a, b)


# A change of sign is no arithmetic: it cannot round.
subtract.defvjp(lambda a, b: (subtract(a, b), None), lambda _, ct: (ct, -ct))


@_ad.custom_vjp(linear=((0,), (1,)))
def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a b."""
    return _elementwise("multiply", a, b)


multiply.defvjp(
    lambda a, b: (multiply(a, b), (a, b)),
    lambda ab, ct: (multiply(ct, ab[1]), multiply(ct, ab[0])),
)


@_ad.custom_vjp(linear=((0,),))
def divide_or_zero(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return a / b, 0 where b is 0."""
    return _elementwise("divide_or_zero", a, b)


def _divide_fwd(a: jax.Array, b: jax.Array) -> Any:
    out = divide_or_zero(a, b)
    return out, (out, b)


def _divide_bwd(saved: Any, ct: Any) -> Any:
    out, b = saved
    da = divide_or_zero(ct, b)
    return da, -multiply(da, out)


divide_or_zero.defvjp(_divide_fwd, _divide_bwd)


@_ad.custom_vjp
def exp_below(x: jax.Array, m: jax.Array) -> jax.Array:
    """Return exp(x - m), 0 where m is -inf; m counts as a constant."""
    return _elementwise("exp_below", x, m)


def _exp_below_fwd(x: jax.Array, m: jax.Array) -> Any:
    return exp_below(x, m), (x, m)


def _exp_below_bwd(saved: Any, ct: Any) -> Any:
    return multiply(ct, exp_below(*saved)), None


exp_below.defvjp(_exp_below_fwd, _exp_below_bwd)


@_ad.custom_vjp
def log_sum(m: jax.Array, z: jax.Array) -> jax.Array:
    """Return m + log z, m where z is 0; m counts as a constant."""
    return _elementwise("log_sum", m, z)


log_sum.defvjp(
    lambda m, z: (log_sum(m, z), z),
    lambda z, ct: (None, divide_or_zero(ct, z)),
)


@_ad.custom_vjp
def sqrt(x: jax.Array) -> jax.Array:
    """Return the square root; its derivative is 0 where x is 0."""
    return _elementwise("sqrt", x)


def _sqrt_fwd(x: jax.Array) -> Any:
    out = sqrt(x)
    return out, out


sqrt.defvjp(_sqrt_fwd, lambda out, ct: (divide_or_zero(ct, add(out, out)),))


@_ad.custom_vjp(nondiff_argnums=(1,), linear=((0,),))
def scale(x: jax.Array, factor: float) -> jax.Array:
    """Return x times a Python number."""
    return _elementwise("scale", x, parameters=(factor,))


scale.defvjp(lambda x, factor: (scale(x, factor), None), lambda factor, _, ct: (scale(ct, factor),))


@_ad.custom_vjp(nondiff_argnums=(1,), linear=((0,),))
def add_constant(x: jax.Array, constant: float) -> jax.Array:
    """Return x plus a Python number."""
    return _elementwise("add_constant", x, parameters=(constant,))


add_constant.defvjp(
    lambda x, constant: (add_constant(x, constant), None), lambda constant, _, ct: (ct,)
)


@_ad.custom_vjp(nondiff_argnums=(1,))
def leaky_relu(x: jax.Array, slope: float) -> jax.Array:
    """Return x where it is not negative, else slope x."""
    return _elementwise("leaky_relu", x, parameters=(slope,))


@_ad.custom_vjp(nondiff_argnums=(2,), linear=((1,),))
def _leaky_relu_grad(x: jax.Array, ct: jax.Array, slope: float) -> jax.Array:
    return _elementwise("leaky_relu_grad", x, ct, parameters=(slope,))


_leaky_relu_grad.defvjp(
    lambda x, ct, slope: (_leaky_relu_grad(x, ct, slope), x),
    lambda slope, x, g: (None, _leaky_relu_grad(x, g, slope)),
)
leaky_relu.defvjp(
    lambda x, slope: (leaky_relu(x, slope), x),
    lambda slope, x, ct: (_leaky_relu_grad(x, ct, slope),),
)


@_ad.custom_vjp(nondiff_argnums=(1, 2))
def clip(x: jax.Array, low: float, high: float) -> jax.Array:
    """Return x bounded to [low, high]; the derivative is 1 there and 0 outside."""
    return _elementwise("clip", x, parameters=(low, high))


@_ad.custom_vjp(nondiff_argnums=(2, 3), linear=((1,),))
def _clip_grad(x: jax.Array, ct: jax.Array, low: float, high: float) -> jax.Array:
    return _elementwise("clip_grad", x, ct, parameters=(low, high))


_clip_grad.defvjp(
    lambda x, ct, low, high: (_clip_grad(x, ct, low, high), x),
    lambda low, high, x, g: (None, _clip_grad(x, g, low, high)),
)
clip.defvjp(
    lambda x, low, high: (clip(x, low, high), x),
    lambda low, high, x, ct: (_clip_grad(x, ct, low, high),),
)
