# SPDX-License-Identifier: Apache-2.0
"""What every primitive of this package shares: lowering, evaluation and batching.

A primitive takes data arrays of one rank and arrays of a plan. Its parameter ``axis`` is the data
axis of rows or edges; ``plan_axes`` names the data axes that carry a batch of plans, in the order
of the leading axes of the plan's arrays. An operand that does not vary along such an axis has size
1 there, which the kernels read with stride 0: a batch of any kind is one call, and nothing is
transposed or broadcast. With the parameter ``in_place``, which some have, the first result may take
the buffer of the first operand; their dtypes are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from jax_index import _check, _native, _parts, _sharding, _store

Shape = tuple[int, ...]

# The kernels' loops around a row (Nest::kMaxLoops): no array has more axes.
MAX_RANK = 24


class Kernel(_sharding.Divisible):
    """A primitive that remembers which of its operands are static arrays, as parameter ``static``.

    What is lowered sees an operand only as an argument of a function, so that this is noted where
    the call is written down.
    """

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Bind as every primitive does."""
        params.setdefault("static", _store.names_of(operands))
        return super().bind(*operands, **params)


def define(
    name: str,
    *,
    abstract: Callable[..., Any],
    reference: Callable[..., Any],
    attributes: Callable[..., dict[str, Any]],
    batch: Callable[..., Any] | None = None,
    native: Callable[..., bool] | None = None,
) -> Primitive:
    """Make the primitive `name` with several results.

    Args:
        name: the op; the kernel is registered under it.
        abstract: operand avals and parameters to the list of result avals.
        reference: the same meaning in pure JAX, for platforms without a kernel.
        attributes: the parameters to the attributes of the kernel.
        batch: operands, their batch axes and the parameters to operands, parameters and the batch
            axes of the results of one call.
        native: platform, operand avals, result avals and parameters to whether XLA's own ops are to
            be used there although there is a kernel; they must give the same bits.
    """
    primitive = Kernel(f"jax_index_{name}")
    parts = _parts.TABLE[name]

    def avals(*operands: Any, static: Any, **params: Any) -> Any:
        del static
        out, *rooms = abstract(*operands, **params)
        return [_sharding.explicit(name, parts, operands, out, params), *rooms]

    @lru_cache(maxsize=256)
    def compiled(params: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
        run: Any = partial(primitive.bind, **dict(params))
        run.__name__ = run.__qualname__ = primitive.name
        # JAX's mark of a program of one primitive: under debug_nans it is not taken apart further.
        run._apply_primitive = True
        return jax.jit(run)

    def evaluate(*operands: Any, static: Any, **params: Any) -> Any:
        del static  # here are the arrays themselves
        with jax.disable_jit(False):
            return compiled(tuple(sorted(params.items())))(*operands)

    for part, platform in ((_native.CPU, "cpu"), (_native.CUDA, "cuda")):
        rule = _native.lowering(name, part, reference)

        def lower(
            ctx: Any,
            *operands: Any,
            rule: Any = rule,
            part: Any = part,
            platform: str = platform,
            static: Any,
            **params: Any,
        ) -> Any:
            if primitive.told and _sharding.applies(ctx):
                return _sharding.lower(name, primitive, parts, ctx, *operands, **params)
            if native is not None and native(platform, ctx.avals_in, ctx.avals_out, **params):
                return mlir.lower_fun(reference, multiple_results=True)(ctx, *operands, **params)
            first, out = ctx.avals_in[0], ctx.avals_out[0]
            aliased = params.get("in_place", False) and first.shape == out.shape
            given = attributes(**params)
            if part.module is not None:
                ctx, named, names = _store.by_name(ctx, operands, static)
                operands, given = tuple(named), {**given, **names}
            return rule(ctx, *operands, attributes=given, aliased=aliased, **params)

        for form in primitive.forms:
            mlir.register_lowering(form, lower, platform=platform)
    fallback = _native.fallback_lowering(reference)

    def lower_elsewhere(ctx: Any, *operands: Any, static: Any, **params: Any) -> Any:
        del static
        return fallback(ctx, *operands, **params)

    def batcher(operands: Any, axes: Any, *, static: Any, **params: Any) -> Any:
        moved, params, out_axes = batch(list(operands), list(axes), **params)  # type: ignore[misc]
        # A plan that meets a batch of other plans is given another shape.
        kept = tuple((k, name) for k, name in static if moved[k] is operands[k])
        return primitive.bind(*moved, static=kept, **params), out_axes

    for form in primitive.forms:
        form.def_abstract_eval(avals)
        form.def_impl(evaluate)
        mlir.register_lowering(form, lower_elsewhere)
        if batch is not None:
            batching.primitive_batchers[form] = batcher
    return primitive


def batch_data_and_plan(
    data: Sequence[Any],
    data_axes: Sequence[int | None],
    plan: Sequence[Any],
    plan_batch: Sequence[int | None],
    *,
    op: str,
    axis: int,
    plan_axes: Shape,
    main: int = -1,
    most: int = MAX_RANK,
) -> tuple[list[Any], list[Any], int, Shape, int]:
    """Bring one more batch axis into a call.

    Args:
        data: arrays of one rank, or weights, whose axes are the first ones of the others.
        data_axes: where each of them carries the batch.
        plan: arrays of the plan.
        plan_batch: where each of them carries the batch.
        op: the name that errors carry.
        axis: the data axis of rows or edges.
        plan_axes: data axes that carry a batch of plans already.
        main: the data array whose batch axis stays in its place where arrays disagree.
        most: the last place that a batch axis may take.

    Returns:
        data, plan, axis and plan_axes of the batched call, and the place of the batch axis in the
        data and in the results.
    """
    if max(value.ndim for value in data) >= MAX_RANK:
        fix = "Merge batch axes with reshape, or use jax.lax.map for the outer ones."
        expected = f"a batch of arrays of at most {MAX_RANK} axes"
        _check.fail(ValueError, op, "data", expected, f"{data[-1].ndim + 1} axes", fix)
    mapped = [d for d in data_axes if d is not None]
    of_main = data_axes[main]
    place = of_main if of_main is not None else mapped[-1] if mapped else 0
    # Weights that carry the batch have no axis behind their own ones to put it on.
    ranks = [v.ndim - 1 for v, at in zip(data, data_axes, strict=True) if at is not None]
    place = min([place, most, *ranks])
    moved = []
    for value, at in zip(data, data_axes, strict=True):
        if at is None:
            # Weights of lower rank are shared along every axis that they lack.
            moved.append(value if value.ndim < place else jnp.expand_dims(value, place))
        else:
            moved.append(value if at == place else jnp.moveaxis(value, at, place))
    shift = lambda d: d + (d >= place)  # noqa: E731
    plan_axes = tuple(shift(p) for p in plan_axes)
    axis = shift(axis)
    if any(at is not None for at in plan_batch):
        plan_axes = (place, *plan_axes)
        plan = [
            jnp.expand_dims(leaf, 0) if at is None else jnp.moveaxis(leaf, at, 0)
            for leaf, at in zip(plan, plan_batch, strict=True)
        ]
    return moved, list(plan), axis, plan_axes, place


def result_shape(
    shape: Shape, axis: int, count: int, plan_axes: Shape, plan: Sequence[tuple[Any, int]]
) -> Shape:
    """Return the shape of a result with `count` entries on `axis`.

    Args:
        shape: the broadcast shape of the data.
        axis: the data axis of rows or edges.
        count: entries of the result on it.
        plan_axes: data axes that carry a batch of plans.
        plan: arrays of the plan, each with the rank of one plan.
    """
    out = list(shape)
    out[axis] = count
    for k, at in enumerate(plan_axes):
        for leaf, inner in plan:
            if leaf.ndim != len(plan_axes) + inner:
                raise TypeError("an array of the plan has the wrong rank")
            out[at] = shared_size(out[at], leaf.shape[k])
    return tuple(out)


def result_aval(operand: Any, shape: Shape, axis: int | None, dtype: Any = None) -> Any:
    """Return the aval of a result with the operand's sharding off `axis`; replicated if None.

    Made from the operand's aval, so that it varies over the same mesh axes in a shard_map.
    """
    keep: dict[str, Any] = {}
    if any(part is not None for part in operand.sharding.spec):
        spec = [None] * len(shape)
        if axis is not None:
            spec = [*operand.sharding.spec, *[None] * len(shape)][: len(shape)]
            spec[axis] = None
        keep["sharding"] = NamedSharding(operand.sharding.mesh, PartitionSpec(*spec))
    elif len(shape) != operand.ndim:
        keep["sharding"] = NamedSharding(operand.sharding.mesh, PartitionSpec(*[None] * len(shape)))
    return operand.update(shape=shape, dtype=dtype or operand.dtype, weak_type=False, **keep)


def shared_size(*sizes: int) -> int:
    """Return the size of an axis along which some operands may be shared (size 1)."""
    return 0 if 0 in sizes else max(sizes)


def over_plans(
    fn: Callable[..., Any], data: Sequence[Any], plan: Sequence[Any], axis: int, plan_axes: Shape
) -> Any:
    """Apply fn(data, plan, axis) for each plan of a batch: the pure-JAX meaning of `plan_axes`."""
    if not plan_axes:
        return fn(data, plan, axis)
    at, rest = plan_axes[0], plan_axes[1:]
    shared = lambda value, d: value.shape[d] == 1  # noqa: E731
    data_axes = [None if shared(value, at) else at for value in data]
    plan_in = [None if shared(leaf, 0) else 0 for leaf in plan]
    data = [v.squeeze(at) if a is None else v for v, a in zip(data, data_axes, strict=True)]
    plan = [p.squeeze(0) if a is None else p for p, a in zip(plan, plan_in, strict=True)]
    drop = lambda d: d - (d > at)  # noqa: E731
    inner = partial(over_plans, fn, axis=drop(axis), plan_axes=tuple(drop(p) for p in rest))
    if all(a is None for a in (*data_axes, *plan_in)):
        return jnp.expand_dims(inner(data, plan), at)
    return jax.vmap(inner, in_axes=(data_axes, plan_in), out_axes=at)(data, plan)


def along(vector: jax.Array, ndim: int, axis: int = 0) -> jax.Array:
    """Return a vector as an array of `ndim` axes that varies along one of them."""
    return jnp.expand_dims(vector, [d for d in range(ndim) if d != axis])


def take_rows(x: jax.Array, index: jax.Array, axis: int, fill: Any = 0) -> jax.Array:
    """Return rows of x, `fill` where the index names none, in pure JAX; x may have no rows."""
    filler = jnp.asarray(fill, x.dtype)
    if x.shape[axis] == 0:
        return jnp.full((*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :]), filler)
    inside = (index >= 0) & (index < x.shape[axis])
    taken = jnp.take(x, jnp.where(inside, index, 0), axis=axis, mode="clip")
    return jnp.where(along(inside, x.ndim, axis), taken, filler)


def plan_axes_attribute(plan_axes: Shape) -> np.ndarray:
    """Return plan_axes in the form of a kernel attribute."""
    return np.asarray(plan_axes, np.int64)


def align_varying(*values: Any) -> tuple[Any, ...]:
    """Let operands of a shard_map body vary over the same mesh axes.

    Done before an op and outside its derivative rule: the transpose of this cast is the sum over
    devices that a shared operand's cotangent needs.
    """
    leaves = jax.tree.leaves(values)
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return values
    axes = [_varying(leaf) for leaf in leaves]
    union = frozenset().union(*axes)
    if not union or all(a == union for a in axes):
        return values

    def cast(leaf: Any) -> Any:
        missing = tuple(sorted(union - _varying(leaf)))
        if not missing:
            return leaf
        if hasattr(jax.lax, "pcast"):
            return jax.lax.pcast(leaf, missing, to="varying")
        older: Any = jax.lax  # the name before jax 0.9
        return older.pvary(leaf, missing)

    return tuple(jax.tree.map(cast, value) for value in values)


def _varying(value: Any) -> frozenset[str]:
    if not isinstance(value, jax.core.Tracer):
        return frozenset()
    aval = jax.typeof(value)
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset(kind.varying if kind is not None else getattr(aval, "vma", ()))
