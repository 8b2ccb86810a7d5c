# SPDX-License-Identifier: Apache-2.0
"""gather, scatter_add and index_add: the selection matrix and its transpose.

gather and scatter_add are each other's adjoint, so derivatives of any order need no further kernel.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _cache, _check, _fill, _primitive, _storage
from jax_index._plan import GROUP, IndexPlan
from jax_index.ops.convert import convert


def _batch(op: str, num_data: int, operands: list[Any], axes: list[Any], **p: Any) -> Any:
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


# --- gather -------------------------------------------------------------------------------------


def _gather_abstract(
    x: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, *, axis: int, plan_axes: Any, **_: Any
) -> list[Any]:
    leaves = [(ids, 1), (indptr, 1), (perm, 1), (tasks, 2)]
    shape = _primitive.result_shape(x.shape, axis, ids.shape[-1], plan_axes, leaves)
    return [_primitive.result_aval(x, shape, axis)]


def _gather_reference(
    x: Any, ids: Any, *csr: Any, axis: int, plan_axes: Any, fill: Any, **_: Any
) -> list[Any]:
    del csr
    raw = b"".join(word.to_bytes(8, "little") for word in fill)
    filler = np.frombuffer(raw[: np.dtype(x.dtype).itemsize], x.dtype)[0]

    def one(data: Any, plan: Any, axis: int) -> Any:
        (x,), (ids,) = data, plan
        n = x.shape[axis]
        inside = (ids >= 0) & (ids < n)
        shape = [1] * x.ndim
        shape[axis] = ids.shape[0]
        if n == 0:
            out_shape = tuple(ids.shape[0] if d == axis else s for d, s in enumerate(x.shape))
            return jnp.full(out_shape, filler, x.dtype)
        taken = jnp.take(x, jnp.where(inside, ids, 0), axis=axis)
        return jnp.where(inside.reshape(shape), taken, jnp.asarray(filler, x.dtype))

    return [_primitive.over_plans(one, [x], [ids], axis, plan_axes)]


def _gather_attributes(
    axis: int, plan_axes: Any, identity: bool, no_long_row: bool, fill: tuple[int, int]
) -> dict[str, Any]:
    return {
        "axis": np.int64(axis),
        "plan_axes": _primitive.plan_axes_attribute(plan_axes),
        "identity": np.bool_(identity),
        "no_long_row": np.bool_(no_long_row),
        # The same bits with a sign: JAX cannot lower an unsigned attribute of 2**63 or more.
        "fill_low": np.uint64(fill[0]).view(np.int64),
        "fill_high": np.uint64(fill[1]).view(np.int64),
    }


gather_p = _primitive.define(
    "gather",
    abstract=_gather_abstract,
    reference=_gather_reference,
    attributes=_gather_attributes,
    batch=partial(_batch, "gather", 1),
)


def gather(
    x: Any, plan: Any, *, axis: int = 0, mode: str | None = None, fill_value: Any = 0
) -> jax.Array:
    """Take rows of ``x``: ``out[e] = x[ids[e]]``, or ``fill_value`` where ids[e] names no row.

    Args:
        x: ``[n, ...]``, any dtype, random keys included; rows stand on `axis`.
        plan: an :class:`IndexPlan` with ``num_rows == n``, or ids ``[m]`` (concrete ones are sorted
            once and remembered by content; traced ones are sorted on the device and dropped where
            out of range).
        axis: the axis of rows; a Python int.
        mode: with a plan None. With ids ``"raise"``, ``"drop"`` or None, see :func:`make_plan`.
        fill_value: a scalar, not traced; what edges that name no row receive.

    Returns:
        ``[m, ...]`` of ``x``'s dtype, not weakly typed.

    Raises:
        TypeError: a wrong type of argument.
        ValueError: sizes that do not belong together, or a fill_value that the dtype cannot hold.
        IndexError: raw ids out of range in mode "raise".

    Gradient:
        ``scatter_add(ct, plan)``, exactly the adjoint; edges that name no row get 0. Any order of
        reverse mode. The gradient with respect to fill_value is not defined.

    Determinism:
        Bits are moved, never computed: equal on every machine.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> jax_index.gather(jnp.arange(3.0), [2, 0, 2]).tolist()
        [2.0, 0.0, 2.0]
    """
    op = "gather"
    x = _check.array(op, "x", x)
    axis = _check.axis(op, axis, x.ndim, "x")
    plan = _cache.resolve(op, plan, mode, None if isinstance(plan, IndexPlan) else x.shape[axis])
    _check.rows(op, "x", x, axis, plan.num_rows, "the plan's num_rows")
    x, plan = _primitive.align_varying(x, plan)
    return _gather_jit(x, plan, axis, _fill.words(op, fill_value, x.dtype))


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _gather(x: jax.Array, plan: IndexPlan, axis: int, fill: tuple[int, int]) -> jax.Array:
    stored = _storage.encode(x)
    (out,) = gather_p.bind(
        stored,
        *plan.arrays,
        axis=axis,
        plan_axes=(),
        identity=plan.identity,
        no_long_row=plan.no_long_row,
        fill=fill,
    )
    return _storage.decode(out, x)


def _gather_fwd(
    x: jax.Array, plan: IndexPlan, axis: int, fill: tuple[int, int]
) -> tuple[jax.Array, IndexPlan]:
    return _gather(x, plan, axis, fill), plan


def _gather_bwd(axis: int, fill: tuple[int, int], plan: IndexPlan, ct: Any) -> tuple[Any, None]:
    del fill
    if ct.dtype == jax.dtypes.float0:
        return None, None
    return scatter_add(ct, plan, axis=axis), None


_gather.defvjp(_gather_fwd, _gather_bwd)
_gather_jit = jax.jit(_gather, static_argnums=(2, 3))

# --- scatter_add --------------------------------------------------------------------------------


def _fold_abstract(data: list[Any], plan: Any, axis: int, plan_axes: Any, no_long: bool) -> Any:
    ids, indptr, perm, tasks = plan
    n, m = indptr.shape[-1] - 1, perm.shape[-1]
    shapes = [(*d.shape[:axis], 0, *d.shape[axis + 1 :]) for d in data]
    wide = tuple(_primitive.shared_size(*sizes) for sizes in zip(*shapes, strict=True))
    leaves = [(ids, 1), (indptr, 1), (perm, 1), (tasks, 2)]
    shape = _primitive.result_shape(wide, axis, n, plan_axes, leaves)
    out = _primitive.result_aval(data[-1], shape, axis)
    room = _workspace_bytes(out, m, axis, no_long)
    return [out, _primitive.result_aval(data[-1], (room,), None, jnp.dtype("uint8"))]


def _workspace_bytes(out: Any, num_edges: int, axis: int, no_long_row: bool) -> int:
    """Return the room for the partial sums of rows beyond one group; XLA plans its memory."""
    if no_long_row:
        return 0
    width = math.prod(out.shape[:axis] + out.shape[axis + 1 :])
    # A four-bit float arrives as a byte and is summed in float32.
    item = max(4, out.dtype.itemsize)
    return (num_edges // (GROUP // 2) + 1) * width * item


def _fold_attributes(
    axis: int, plan_axes: Any, identity: bool, no_long_row: bool, float4: bool
) -> dict[str, Any]:
    return {
        "axis": np.int64(axis),
        "plan_axes": _primitive.plan_axes_attribute(plan_axes),
        "identity": np.bool_(identity),
        "no_long_row": np.bool_(no_long_row),
        "float4": np.bool_(float4),
    }


def _row_sums(data: Any, plan: Any, axis: int) -> Any:
    """Sum rows in pure JAX: data [y], plan (indptr, perm)."""
    (y,), (indptr, perm) = data, plan
    n, m = indptr.shape[0] - 1, perm.shape[0]
    place = jnp.arange(m, dtype=jnp.int32)
    row = jnp.searchsorted(indptr, place, side="right") - 1
    row = jnp.where(place < indptr[n], row, n)
    wide = _wide(y)
    ordered = jnp.take(jnp.moveaxis(wide, axis, 0), perm, axis=0, mode="clip")
    total = jnp.zeros((n, *ordered.shape[1:]), wide.dtype)
    total = total.at[row].add(ordered, mode="drop", indices_are_sorted=True)
    return jnp.moveaxis(total, 0, axis)


def _wide(y: Any) -> Any:
    narrow = jnp.issubdtype(y.dtype, jnp.floating) and y.dtype.itemsize < 4
    return y.astype(jnp.float32) if narrow else y


def _workspace(out: Any, perm: Any, axis: int, no_long_row: bool) -> Any:
    return jnp.zeros(_workspace_bytes(out, perm.shape[-1], axis, no_long_row), jnp.uint8)


def _scatter_add_abstract(y: Any, *plan: Any, **p: Any) -> list[Any]:
    return _fold_abstract([y], plan, p["axis"], p["plan_axes"], p["no_long_row"])


def _scatter_add_reference(
    y: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, **p: Any
) -> list[Any]:
    del ids, tasks
    like, axis = y, p["axis"]
    if p["float4"]:
        y = jax.lax.bitcast_convert_type(y.astype(jnp.uint4), jnp.float4_e2m1fn)
    total = _primitive.over_plans(_row_sums, [y], [indptr, perm], axis, p["plan_axes"])
    out = total.astype(y.dtype)
    if p["float4"]:
        out = jax.lax.bitcast_convert_type(out, jnp.uint4).astype(like.dtype)
    return [out, _workspace(out, perm, axis, p["no_long_row"])]


scatter_add_p = _primitive.define(
    "scatter_add",
    abstract=_scatter_add_abstract,
    reference=_scatter_add_reference,
    attributes=_fold_attributes,
    batch=partial(_batch, "scatter_add", 1),
)


def scatter_add(
    y: Any, plan: Any, *, num_rows: int | None = None, axis: int = 0, mode: str | None = None
) -> jax.Array:
    """Sum edges into rows: ``out[i] = Σ_{e: ids[e] = i} y[e]``; a row with no edge is +0.

    Args:
        y: ``[m, ...]``, any integer, float (bfloat16, float16 and float8 included) or complex
            dtype; edges stand on `axis`.
        plan: an :class:`IndexPlan` with ``num_edges == m``, or ids ``[m]``, see :func:`gather`.
        num_rows: n. With a plan None or equal to the plan's; with ids required.
        axis: the axis of edges; a Python int.
        mode: with a plan None. With ids ``"raise"``, ``"drop"`` or None, see :func:`make_plan`.

    Returns:
        ``[n, ...]`` of ``y``'s dtype, not weakly typed. Narrow floats are summed in float32 and
        rounded once; integers wrap.

    Raises:
        TypeError: a wrong type of argument; a bool ``y``.
        ValueError: sizes that do not belong together.
        IndexError: raw ids out of range in mode "raise".

    Gradient:
        ``gather(ct, plan)``, exactly the adjoint. Any order of reverse mode.

    Determinism:
        A row's edges, in the caller's order, are cut into chunks of 32, each folded left to right
        from +0; chunk results are folded in the same way, level by level. The bits depend on the
        inputs alone: equal for any number of threads, eager and jitted, batched and looped, on CPU
        and CUDA. No atomics.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> jax_index.scatter_add(jnp.ones(3), [2, 0, 2], num_rows=4).tolist()
        [1.0, 0.0, 2.0, 0.0]
    """
    op = "scatter_add"
    y = _check.array(op, "y", y)
    axis = _check.axis(op, axis, y.ndim, "y")
    _check_summable(op, "y", y.dtype)
    if num_rows is not None:
        num_rows = _check.size(op, "num_rows", num_rows)
    plan = _cache.resolve(op, plan, mode, num_rows)
    _check.rows(op, "y", y, axis, plan.num_edges, "one for each edge of the plan")
    y, plan = _primitive.align_varying(y, plan)
    return _scatter_add_jit(y, plan, axis)


def _check_summable(op: str, argument: str, dtype: Any) -> None:
    expected = "of a numeric dtype"
    if dtype == np.bool_:
        fix = f"Count with {argument}.astype(jnp.int32)."
        _check.fail(TypeError, op, argument, expected, "dtype bool", fix)
    if _storage.is_key(dtype) or dtype == jax.dtypes.float0:
        fix = "Only numbers can be summed."
        name = "float0" if dtype == jax.dtypes.float0 else dtype
        _check.fail(TypeError, op, argument, expected, f"dtype {name}", fix)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _scatter_add(y: jax.Array, plan: IndexPlan, axis: int) -> jax.Array:
    out, _ = scatter_add_p.bind(
        _storage.encode(y),
        *plan.arrays,
        axis=axis,
        plan_axes=(),
        identity=plan.identity,
        no_long_row=plan.no_long_row,
        float4=_storage.is_float4(y.dtype),
    )
    return _storage.decode(out, y)


def _scatter_add_fwd(y: jax.Array, plan: IndexPlan, axis: int) -> tuple[jax.Array, IndexPlan]:
    return _scatter_add(y, plan, axis), plan


def _scatter_add_bwd(axis: int, plan: IndexPlan, ct: Any) -> tuple[Any, None]:
    if ct.dtype == jax.dtypes.float0:
        return None, None
    return gather(ct, plan, axis=axis), None


_scatter_add.defvjp(_scatter_add_fwd, _scatter_add_bwd)
_scatter_add_jit = jax.jit(_scatter_add, static_argnums=(2,))

# --- index_add ----------------------------------------------------------------------------------


def _index_add_abstract(x: Any, y: Any, *plan: Any, **p: Any) -> list[Any]:
    return _fold_abstract([x, y], plan, p["axis"], p["plan_axes"], p["no_long_row"])


def _index_add_reference(
    x: Any, y: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, **p: Any
) -> list[Any]:
    del ids, tasks
    like, axis = y, p["axis"]
    if p["float4"]:
        x, y = (
            jax.lax.bitcast_convert_type(v.astype(jnp.uint4), jnp.float4_e2m1fn) for v in (x, y)
        )

    def one(data: Any, plan: Any, axis: int) -> Any:
        x, y = data
        indptr, _ = plan
        total = _row_sums([y], plan, axis)
        shape = [1] * total.ndim
        shape[axis] = -1
        empty = (jnp.diff(indptr) == 0).reshape(shape)
        return jnp.where(empty, x, (_wide(x) + total).astype(x.dtype))

    out = _primitive.over_plans(one, [x, y], [indptr, perm], axis, p["plan_axes"])
    if p["float4"]:
        out = jax.lax.bitcast_convert_type(out, jnp.uint4).astype(like.dtype)
    return [out, _workspace(out, perm, axis, p["no_long_row"])]


index_add_p = _primitive.define(
    "index_add",
    abstract=_index_add_abstract,
    reference=_index_add_reference,
    attributes=_fold_attributes,
    batch=partial(_batch, "index_add", 2),
)


def index_add(x: Any, plan: Any, y: Any, *, axis: int = 0, mode: str | None = None) -> jax.Array:
    """Add edges to rows: ``out[i] = x[i] + Σ_{e: ids[e] = i} y[e]``.

    Args:
        x: ``[n, ...]``; rows stand on `axis`.
        plan: an :class:`IndexPlan` of n rows and m edges, or ids ``[m]``, see :func:`gather`.
        y: ``[m, ...]``; of x's shape off the axis.
        axis: the axis of rows in x and of edges in y; a Python int.
        mode: with a plan None. With ids ``"raise"``, ``"drop"`` or None, see :func:`make_plan`.

    Returns:
        ``[n, ...]`` of dtype ``jnp.result_type(x, y)``. The row sum is that of
        :func:`scatter_add`; it is added to x in the accumulator type and rounded once. A row with
        no edge returns x's bits.

    Raises:
        TypeError: a wrong type of argument; bool operands.
        ValueError: sizes that do not belong together.
        IndexError: raw ids out of range in mode "raise".

    Gradient:
        ``ct`` for x and ``gather(ct, plan)`` for y. Any order of reverse mode.

    Determinism:
        As :func:`scatter_add`.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> jax_index.index_add(jnp.ones(3), [2, 0, 2], jnp.ones(3)).tolist()
        [2.0, 1.0, 3.0]
    """
    op = "index_add"
    x = _check.array(op, "x", x)
    y = _check.array(op, "y", y)
    axis = _check.axis(op, axis, x.ndim, "x")
    _check_summable(op, "x", x.dtype)
    _check_summable(op, "y", y.dtype)
    if y.ndim != x.ndim or _off_axis(x.shape, axis) != _off_axis(y.shape, axis):
        fix = "Broadcast y to x's trailing shape first."
        expected = f"an array of x's shape {x.shape} off axis {axis}"
        _check.fail(ValueError, op, "y", expected, f"shape {y.shape}", fix)
    plan = _cache.resolve(op, plan, mode, None if isinstance(plan, IndexPlan) else x.shape[axis])
    _check.rows(op, "x", x, axis, plan.num_rows, "the plan's num_rows")
    _check.rows(op, "y", y, axis, plan.num_edges, "one for each edge of the plan")
    dtype = jnp.result_type(x, y)
    x, y, plan = _primitive.align_varying(x, y, plan)
    return _index_add_jit(x, y, plan, axis, dtype)


def _off_axis(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _index_add_promoted(x: Any, y: Any, plan: IndexPlan, axis: int, dtype: Any) -> jax.Array:
    return _index_add(convert(x, dtype), convert(y, dtype), plan, axis)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _index_add(x: jax.Array, y: jax.Array, plan: IndexPlan, axis: int) -> jax.Array:
    out, _ = index_add_p.bind(
        _storage.encode(x),
        _storage.encode(y),
        *plan.arrays,
        axis=axis,
        plan_axes=(),
        identity=plan.identity,
        no_long_row=plan.no_long_row,
        float4=_storage.is_float4(x.dtype),
    )
    return _storage.decode(out, x)


def _index_add_fwd(
    x: jax.Array, y: jax.Array, plan: IndexPlan, axis: int
) -> tuple[jax.Array, IndexPlan]:
    return _index_add(x, y, plan, axis), plan


def _index_add_bwd(axis: int, plan: IndexPlan, ct: Any) -> tuple[Any, Any, None]:
    if ct.dtype == jax.dtypes.float0:
        return None, None, None
    return ct, gather(ct, plan, axis=axis), None


_index_add.defvjp(_index_add_fwd, _index_add_bwd)
_index_add_jit = jax.jit(_index_add_promoted, static_argnums=(3, 4))
