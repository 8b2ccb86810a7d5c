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

from jax_index import _ad, _cache, _check, _fill, _primitive, _sharding, _storage
from jax_index._plan import IndexPlan
from jax_index.ops import row_fold
from jax_index.ops.convert import convert

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
        return _primitive.take_rows(x, ids, axis, filler)

    return [_primitive.over_plans(one, [x], [ids], axis, plan_axes)]


LOWERINGS = ("auto", "kernel", "native")


def _gather_native(
    platform: str, avals_in: Any, avals_out: Any, *, axis: int, lowering: str, **_: Any
) -> bool:
    """Say whether XLA gathers: a function of shapes, dtype and platform alone.

    On a GPU the kernel wins where rows are of 256 bytes and more and the result is larger than the
    cache, since it reads each row once; elsewhere XLA's gather wins, which is fused into what
    consumes it.
    """
    del avals_in
    if lowering != "auto" or platform != "cuda":
        return lowering == "native"
    (out,) = avals_out
    row = math.prod(out.shape[axis + 1 :]) * out.dtype.itemsize
    return row < 256 or row % 16 != 0 or out.size * out.dtype.itemsize < 2**26


def _gather_attributes(
    axis: int,
    plan_axes: Any,
    identity: bool,
    no_long_row: bool,
    fill: tuple[int, int],
    lowering: str,
) -> dict[str, Any]:
    del lowering
    return {
        **row_fold.plan_attributes(axis, plan_axes, identity, no_long_row),
        # The same bits with a sign: JAX cannot lower an unsigned attribute of 2**63 or more.
        "fill_low": np.uint64(fill[0]).view(np.int64),
        "fill_high": np.uint64(fill[1]).view(np.int64),
    }


gather_p = _primitive.define(
    "gather",
    abstract=_gather_abstract,
    reference=_gather_reference,
    attributes=_gather_attributes,
    batch=partial(row_fold.batch, "gather", 1),
    native=_gather_native,
)


def gather(
    x: Any,
    plan: Any,
    *,
    axis: int = 0,
    mode: str | None = None,
    fill_value: Any = 0,
    lowering: str = "auto",
    allow_reduction: bool = False,
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
        lowering: ``"kernel"``: this package's kernel; ``"native"``: XLA's gather, which it fuses
            into what consumes it; ``"auto"``: by shapes, dtype and platform. The adjoint is ours
            and the bits are the same.
        allow_reduction: as in :func:`scatter_add`, for the gradient.

    Returns:
        ``[m, ...]`` of ``x``'s dtype, not weakly typed.

    Raises:
        TypeError: a wrong type of argument.
        ValueError: sizes that do not belong together, a fill_value that the dtype cannot hold, or
            an unknown lowering.
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
    if lowering not in LOWERINGS:
        fix = "Leave it out to let shapes decide."
        expected = "'auto', 'kernel' or 'native'"
        _check.fail(ValueError, op, "lowering", expected, repr(lowering), fix)
    allow_reduction = _check.flag(op, "allow_reduction", allow_reduction)
    x, plan = _primitive.align_varying(_sharding.whole(x, axis), plan)
    fill = _fill.words(op, fill_value, x.dtype)
    return _gather_jit(x, plan, axis, fill, lowering, allow_reduction)


@_ad.custom_vjp(nondiff_argnums=(2, 3, 4, 5), linear=((0,),))
def _gather(
    x: jax.Array, plan: IndexPlan, axis: int, fill: tuple[int, int], lowering: str, allow: bool
) -> jax.Array:
    del allow
    stored = _storage.encode(x)
    (out,) = gather_p.bind(
        stored,
        *plan.arrays,
        **row_fold.walk(plan, axis),
        fill=fill,
        lowering=lowering,
    )
    return _storage.decode(out, x)


def _gather_fwd(
    x: jax.Array, plan: IndexPlan, axis: int, fill: tuple[int, int], lowering: str, allow: bool
) -> tuple[jax.Array, IndexPlan]:
    return _gather(x, plan, axis, fill, lowering, allow), plan


def _gather_bwd(
    axis: int, fill: tuple[int, int], lowering: str, allow: bool, plan: IndexPlan, ct: Any
) -> tuple[Any, None]:
    del fill, lowering
    if ct.dtype == jax.dtypes.float0:
        return None, None
    return scatter_add(ct, plan, axis=axis, allow_reduction=allow), None


_gather.defvjp(_gather_fwd, _gather_bwd)
_gather_jit = _ad.jit(_gather, static_argnums=(2, 3, 4, 5))

# --- scatter_add --------------------------------------------------------------------------------


def _fold_attributes(float4: bool, allow_reduction: bool = False, **p: Any) -> dict[str, Any]:
    del allow_reduction
    return {**row_fold.plan_attributes(**p), "float4": np.bool_(float4)}


def _scatter_add_abstract(y: Any, *plan: Any, **p: Any) -> list[Any]:
    return row_fold.fold_abstract([y], plan, p["axis"], p["plan_axes"], p["no_long_row"])


def _scatter_add_reference(
    y: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, **p: Any
) -> list[Any]:
    del ids, tasks
    like, axis = y, p["axis"]
    if p["float4"]:
        y = jax.lax.bitcast_convert_type(y.astype(jnp.uint4), jnp.float4_e2m1fn)
    total = _primitive.over_plans(row_fold.row_sums, [y], [indptr, perm], axis, p["plan_axes"])
    out = total.astype(y.dtype)
    if p["float4"]:
        out = jax.lax.bitcast_convert_type(out, jnp.uint4).astype(like.dtype)
    return [out, row_fold.workspace(out, perm, axis, p["no_long_row"])]


scatter_add_p = _primitive.define(
    "scatter_add",
    abstract=_scatter_add_abstract,
    reference=_scatter_add_reference,
    attributes=_fold_attributes,
    batch=partial(row_fold.batch, "scatter_add", 1),
)


def scatter_add(
    y: Any,
    plan: Any,
    *,
    num_rows: int | None = None,
    axis: int = 0,
    mode: str | None = None,
    allow_reduction: bool = False,
) -> jax.Array:
    """Sum edges into rows: ``out[i] = Σ_{e: ids[e] = i} y[e]``; a row with no edge is +0.

    Args:
        y: ``[m, ...]``, any integer, float (bfloat16, float16 and float8 included) or complex
            dtype; edges stand on `axis`.
        plan: an :class:`IndexPlan` with ``num_edges == m``, or ids ``[m]``, see :func:`gather`.
        num_rows: n. With a plan None or equal to the plan's; with ids required.
        axis: the axis of edges; a Python int.
        mode: with a plan None. With ids ``"raise"``, ``"drop"`` or None, see :func:`make_plan`.
        allow_reduction: where the edges are sharded over devices, let each sum its own and add the
            sums over devices, instead of an error. The gradient is ``gather`` with the same.

    Returns:
        ``[n, ...]`` of ``y``'s dtype, not weakly typed. Narrow floats are summed in float32 and
        rounded once; integers wrap.

    Raises:
        TypeError: a wrong type of argument; a bool ``y``.
        ValueError: sizes that do not belong together; on an explicit mesh, edges that are sharded
            without allow_reduction (on an automatic one the same text comes from the compiler).
        IndexError: raw ids out of range in mode "raise".

    Gradient:
        ``gather(ct, plan)``, exactly the adjoint. Any order of reverse mode.

    Determinism:
        A row's edges, in the caller's order, are cut into chunks of 32, each folded left to right
        from +0; chunk results are folded in the same way, level by level. The bits depend on the
        inputs alone: equal for any number of threads, eager and jitted, batched and looped, on CPU
        and CUDA. No atomics. Sums over devices (allow_reduction) are outside of this.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> jax_index.scatter_add(jnp.ones(3), [2, 0, 2], num_rows=4).tolist()
        [1.0, 0.0, 2.0, 0.0]
    """
    op = "scatter_add"
    allow_reduction = _check.flag(op, "allow_reduction", allow_reduction)
    y = _check.array(op, "y", y)
    axis = _check.axis(op, axis, y.ndim, "y")
    check_summable(op, "y", y.dtype)
    if num_rows is not None:
        num_rows = _check.size(op, "num_rows", num_rows)
    plan = _cache.resolve(op, plan, mode, num_rows)
    _check.rows(op, "y", y, axis, plan.num_edges, "one for each edge of the plan")
    y, plan = _primitive.align_varying(y, plan)
    return sum_rows(y, plan, axis, allow_reduction)


def check_summable(op: str, argument: str, dtype: Any) -> None:
    """Check that elements of `dtype` can be summed."""
    expected = "of a numeric dtype"
    if dtype == np.bool_:
        fix = f"Count with {argument}.astype(jnp.int32)."
        _check.fail(TypeError, op, argument, expected, "dtype bool", fix)
    if _storage.is_key(dtype) or dtype == jax.dtypes.float0:
        fix = "Only numbers can be summed."
        name = "float0" if dtype == jax.dtypes.float0 else dtype
        _check.fail(TypeError, op, argument, expected, f"dtype {name}", fix)


@_ad.custom_vjp(nondiff_argnums=(2, 3), linear=((0,),))
def _scatter_add(y: jax.Array, plan: IndexPlan, axis: int, allow: bool) -> jax.Array:
    out, _ = scatter_add_p.bind(
        _storage.encode(y),
        *plan.arrays,
        **row_fold.walk(plan, axis),
        float4=_storage.is_float4(y.dtype),
        allow_reduction=allow,
    )
    return _storage.decode(out, y)


def _scatter_add_fwd(
    y: jax.Array, plan: IndexPlan, axis: int, allow: bool
) -> tuple[jax.Array, IndexPlan]:
    return _scatter_add(y, plan, axis, allow), plan


def _scatter_add_bwd(axis: int, allow: bool, plan: IndexPlan, ct: Any) -> tuple[Any, None]:
    if ct.dtype == jax.dtypes.float0:
        return None, None
    return gather(ct, plan, axis=axis, allow_reduction=allow), None


_scatter_add.defvjp(_scatter_add_fwd, _scatter_add_bwd)
_scatter_add_jit = _ad.jit(_scatter_add, static_argnums=(2, 3))


def sum_rows(
    y: jax.Array, plan: IndexPlan, axis: int = 0, allow_reduction: bool = False
) -> jax.Array:
    """Sum edges into rows: scatter_add of arguments that are checked already."""
    if allow_reduction and _sharding.is_cut(y, axis):
        # What is gathered with the plan, as in the derivative, is then sharded as y is.
        ids, indptr, perm, tasks = plan.arrays
        ids, n, m = _sharding.like_edges(ids, y, axis), plan.num_rows, plan.num_edges
        plan = IndexPlan(ids, indptr, perm, tasks, n, m, plan.identity, plan.no_long_row)
    return _scatter_add_jit(y, plan, axis, allow_reduction)


# --- index_add ----------------------------------------------------------------------------------


def _index_add_abstract(x: Any, y: Any, *plan: Any, **p: Any) -> list[Any]:
    return row_fold.fold_abstract([x, y], plan, p["axis"], p["plan_axes"], p["no_long_row"])


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
        total = row_fold.row_sums([y], plan, axis)
        empty = _primitive.along(jnp.diff(indptr) == 0, total.ndim, axis)
        return jnp.where(empty, x, (row_fold.wide_sums(x) + total).astype(x.dtype))

    out = _primitive.over_plans(one, [x, y], [indptr, perm], axis, p["plan_axes"])
    if p["float4"]:
        out = jax.lax.bitcast_convert_type(out, jnp.uint4).astype(like.dtype)
    return [out, row_fold.workspace(out, perm, axis, p["no_long_row"])]


def _index_add_attributes(in_place: bool, **p: Any) -> dict[str, Any]:
    del in_place
    return _fold_attributes(**p)


index_add_p = _primitive.define(
    "index_add",
    abstract=_index_add_abstract,
    reference=_index_add_reference,
    attributes=_index_add_attributes,
    batch=partial(row_fold.batch, "index_add", 2),
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
        no edge returns x's bits. In a jitted function the result takes x's buffer: a donated x, and
        one that is not needed afterwards, such as the carry of a loop, is added to in place.

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
    check_summable(op, "x", x.dtype)
    check_summable(op, "y", y.dtype)
    if y.ndim != x.ndim or _off_axis(x.shape, axis) != _off_axis(y.shape, axis):
        fix = "Broadcast y to x's trailing shape first."
        expected = f"an array of x's shape {x.shape} off axis {axis}"
        _check.fail(ValueError, op, "y", expected, f"shape {y.shape}", fix)
    plan = _cache.resolve(op, plan, mode, None if isinstance(plan, IndexPlan) else x.shape[axis])
    _check.rows(op, "x", x, axis, plan.num_rows, "the plan's num_rows")
    _check.rows(op, "y", y, axis, plan.num_edges, "one for each edge of the plan")
    dtype = jnp.result_type(x, y)
    # An eager x stays the caller's, and would be copied first; in a program it mostly ends here.
    in_place = isinstance(x, jax.core.Tracer)
    x, y, plan = _primitive.align_varying(_sharding.whole(x, axis), y, plan)
    return _index_add_jit(x, y, plan, axis, dtype, in_place)


def _off_axis(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _index_add_promoted(
    x: Any, y: Any, plan: IndexPlan, axis: int, dtype: Any, in_place: bool
) -> jax.Array:
    return _index_add(convert(x, dtype), convert(y, dtype), plan, axis, in_place)


@_ad.custom_vjp(nondiff_argnums=(3, 4), linear=((0, 1),))
def _index_add(x: jax.Array, y: jax.Array, plan: IndexPlan, axis: int, in_place: bool) -> jax.Array:
    out, _ = index_add_p.bind(
        _storage.encode(x),
        _storage.encode(y),
        *plan.arrays,
        **row_fold.walk(plan, axis),
        float4=_storage.is_float4(x.dtype),
        in_place=in_place,
    )
    return _storage.decode(out, x)


def _index_add_fwd(
    x: jax.Array, y: jax.Array, plan: IndexPlan, axis: int, in_place: bool
) -> tuple[jax.Array, IndexPlan]:
    return _index_add(x, y, plan, axis, in_place), plan


def _index_add_bwd(axis: int, in_place: bool, plan: IndexPlan, ct: Any) -> tuple[Any, Any, None]:
    del in_place
    if ct.dtype == jax.dtypes.float0:
        return None, None, None
    return ct, gather(ct, plan, axis=axis), None


def _index_add_tangent(
    axis: int, in_place: bool, plan: IndexPlan, d_x: Any, d_y: Any, d_plan: Any
) -> jax.Array:
    del in_place, d_plan
    if d_x is None:
        return scatter_add(d_y, plan, axis=axis)
    return d_x if d_y is None else _index_add(d_x, d_y, plan, axis, False)


_index_add.defvjp(_index_add_fwd, _index_add_bwd, _index_add_tangent)
_index_add_jit = _ad.jit(_index_add_promoted, static_argnums=(3, 4, 5))
