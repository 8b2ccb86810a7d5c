# SPDX-License-Identifier: Apache-2.0
"""spmm and sddmm: a graph's matrix times node features, and the adjoint in the weights.

Each stands in the other's derivative, so derivatives of any order need no further kernel, and no
array of the size of edges times features is ever made.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _ad, _check, _primitive, _sharding
from jax_index._graph import Graph
from jax_index._plan import IndexPlan
from jax_index.ops import pointwise, row_fold
from jax_index.ops.graph_arguments import check_graph, computed, numeric, per_edge, stored

# --- spmm ---------------------------------------------------------------------------------------


def _spmm_abstract(
    x: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, source: Any, *rest: Any, **p: Any
) -> Any:
    axis = p["axis"]
    n = indptr.shape[-1] - 1
    wide = list(x.shape)
    for other in rest:
        for d in range(other.ndim):
            if d != axis:
                wide[d] = _primitive.shared_size(wide[d], other.shape[d])
    leaves = [(ids, 1), (indptr, 1), (perm, 1), (tasks, 2), (source, 1)]
    shape = _primitive.result_shape(tuple(wide), axis, n, p["plan_axes"], leaves)
    out = _primitive.result_aval(x, shape, axis, jnp.dtype(p["dtype"]))
    room = row_fold.workspace_bytes(out, perm.shape[-1], axis, p["no_long_row"])
    return [out, _primitive.result_aval(x, (room,), None, jnp.dtype("uint8"))]


def _behind(value: Any, rank: int) -> Any:
    """Give an array of lower rank the axes that it lacks."""
    return value.reshape(value.shape + (1,) * (rank - value.ndim))


def _spmm_reference(
    x: Any, ids: Any, indptr: Any, perm: Any, tasks: Any, source: Any, *rest: Any, **p: Any
) -> Any:
    del ids, tasks
    wide = pointwise.wide(x.dtype) if _is_float(x.dtype) else x.dtype
    data = [_behind(v, x.ndim).astype(wide) for v in (x, *rest)]

    def one(data: Any, plan: Any, axis: int) -> Any:
        indptr, perm, source = plan
        rest = list(data[1:])
        sender = jnp.zeros_like(source).at[perm].set(source, mode="drop")
        y = _primitive.take_rows(data[0], sender, axis)
        weight = rest.pop(0) if p["weighted"] else 1
        if p["additive"]:
            z = y + _primitive.take_rows(rest.pop(0), row_fold.edge_rows(indptr, perm), axis)
            slopes = jnp.where(z >= 0, jnp.ones_like(z), p["slope"])
            y = slopes * (z if p["additive"] == 2 else 1)
        y = y * weight
        total = row_fold.row_sums([y], (indptr, perm), axis)
        if p["divided"]:
            total = pointwise.plain_divide_or_zero(total, rest.pop(0))
        return total

    plan = [indptr, perm, source]
    out = _primitive.over_plans(one, data, plan, p["axis"], p["plan_axes"]).astype(p["dtype"])
    return [out, row_fold.workspace(out, perm, p["axis"], p["no_long_row"])]


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _spmm_attributes(
    weighted: bool, divided: bool, additive: int, slope: float, dtype: Any, gathered: bool, **p: Any
) -> dict[str, Any]:
    del dtype, gathered
    return {
        **row_fold.plan_attributes(**p),
        "weighted": np.bool_(weighted),
        "divided": np.bool_(divided),
        "additive": np.int64(additive),
        "slope": np.float64(slope),
    }


def _spmm_batch(operands: list[Any], axes: list[Any], **p: Any) -> Any:
    data, plan, axis, plan_axes, place = _primitive.batch_data_and_plan(
        [operands[0], *operands[6:]],
        [axes[0], *axes[6:]],
        operands[1:6],
        axes[1:6],
        op="spmm",
        axis=p["axis"],
        plan_axes=p["plan_axes"],
        main=0,
    )
    return [data[0], *plan, *data[1:]], {**p, "axis": axis, "plan_axes": plan_axes}, [place, None]


spmm_p = _primitive.define(
    "spmm",
    abstract=_spmm_abstract,
    reference=_spmm_reference,
    attributes=_spmm_attributes,
    batch=_spmm_batch,
)


def products(
    graph: Graph,
    x: jax.Array,
    weights: jax.Array | None = None,
    divisor: jax.Array | None = None,
    dtype: Any = None,
) -> jax.Array:
    """Sum weights times rows of senders into receivers; divided where asked; no derivative."""
    return row_products(graph.receivers, graph.sender_of, x, weights, divisor, dtype)


def additive_sums(
    graph: Graph, x: jax.Array, y: jax.Array, weights: Any, slope: float, values: bool, dtype: Any
) -> jax.Array:
    """Sum weights times a function of z = x[sender] + y[receiver]; no derivative.

    The function is leaky_relu with `values`, else its slope at z.
    """
    additive = 2 if values else 1
    return row_products(
        graph.receivers, graph.sender_of, x, weights, y, dtype, additive=additive, slope=slope
    )


def row_products(
    plan: IndexPlan,
    source: jax.Array,
    x: jax.Array,
    weights: Any,
    row: Any = None,
    dtype: Any = None,
    *,
    additive: int = 0,
    slope: float = 0.0,
    gathered: bool = False,
) -> jax.Array:
    """Sum weights times rows `source` of x, by position in the plan's rows; no derivative.

    `row` is what the sums are divided by or, where `additive` (1 the slope, 2 the value), what is
    added to the rows of x under leaky_relu. Weights that are cut over devices are an error, or
    `gathered`.
    """
    out, _ = spmm_p.bind(
        x,
        *plan.arrays,
        source,
        *([] if weights is None else [weights]),
        *([] if row is None else [row]),
        **row_fold.walk(plan),
        weighted=weights is not None,
        divided=row is not None and not additive,
        additive=additive,
        slope=slope,
        dtype=jnp.dtype(dtype or x.dtype),
        gathered=gathered,
    )
    return out


@_ad.custom_vjp(linear=((0,), (1,)))
def weighted_sum(x: jax.Array, weights: Any, graph: Graph) -> jax.Array:
    """Return spmm of checked arguments; the weights may be of x's accumulator type."""
    return products(graph, x, weights)


def _spmm_fwd(x: jax.Array, weights: Any, graph: Graph) -> Any:
    return weighted_sum(x, weights, graph), (x, weights, graph)


def _spmm_bwd(saved: Any, ct: Any) -> Any:
    x, weights, graph = saved
    if ct.dtype == jax.dtypes.float0:
        return None, None, None
    dx = weighted_sum(ct, weights, graph.T)
    if weights is None:
        return dx, None, None
    return dx, edge_dots(x, ct, graph, x.ndim - weights.ndim, weights.dtype), None


weighted_sum.defvjp(_spmm_fwd, _spmm_bwd)
_spmm_jit = _ad.jit(weighted_sum)


def spmm(graph: Graph, x: Any, weights: Any = None) -> jax.Array:
    """Multiply a graph's matrix with node features: ``out[r] = Σ_e w[e] x[senders[e]]``.

    The sum runs over the edges e with ``receivers[e] = r``. Rows of x are read where they are
    needed: no array of edges times features is made, forward or backward.

    Args:
        graph: a :class:`Graph` of m edges from n_s senders to n_r receivers.
        x: ``[n_s, ...]``, integers, floats or complex.
        weights: None (all 1), or ``[m, *prefix]`` with prefix a prefix of ``x.shape[1:]``: a weight
            for each edge, or for each edge and head.

    Returns:
        ``[n_r, ...]`` of dtype ``jnp.result_type(x, weights)``, not weakly typed. Narrow floats are
        summed in float32 and rounded once; integers wrap. A receiver with no edge is 0.

    Raises:
        TypeError: a wrong type of argument; bool operands.
        ValueError: sizes that do not belong together.

    Gradient:
        ``spmm(graph.T, ct, weights)`` for x; for the weights the dots of
        ``x[senders[e]]`` and ``ct[receivers[e]]`` over the features that share a weight
        (:func:`sddmm`); nothing is conjugated. Any order of reverse mode.

    Determinism:
        The order of :func:`scatter_add`, each product entering its chunk as ``fma(w, x, sum)``, of
        complex numbers as ``re = fma(-wi, xi, fma(wr, xr, re))`` and
        ``im = fma(wi, xr, fma(wr, xi, im))``: equal bits on every machine.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> graph = jax_index.Graph([0, 1, 1], [0, 0, 2], num_senders=2, num_receivers=3)
        >>> jax_index.spmm(graph, jnp.array([1.0, 10.0]), jnp.array([1.0, 2.0, 3.0])).tolist()
        [21.0, 0.0, 30.0]
    """
    op = "spmm"
    graph = check_graph(op, graph)
    x = _check.array(op, "x", x)
    numeric(op, "x", x)
    if x.ndim == 0:
        fix = "Pass a row for each sender."
        _check.fail(ValueError, op, "x", "an array of at least one axis", "a scalar", fix)
    _check.rows(op, "x", x, 0, graph.num_senders, "one for each sender", _check.GRAPH_FIX)
    dtype = jnp.result_type(x)
    if weights is not None:
        weights = per_edge(op, "weights", weights, graph, x.shape[1:], "x")
        dtype = jnp.result_type(x, weights)
        weights = computed(weights, dtype)
    out_dtype, x = dtype, computed(_sharding.whole(x, 0), dtype)
    x, weights, graph = _primitive.align_varying(x, weights, graph)
    return stored(_spmm_jit(x, weights, graph), out_dtype)


# --- sddmm --------------------------------------------------------------------------------------


def _split_att(rest: Any, additive: bool) -> tuple[Any, Any]:
    """Part what follows x and y: the vector of additive scores, and the indices."""
    return (rest[0], rest[1:]) if additive else (None, rest)


def _sddmm_abstract(x: Any, y: Any, *rest: Any, **p: Any) -> Any:
    att, indices = _split_att(rest, p["additive"])
    axis, depth = p["axis"], p["depth_axes"]
    shapes = [v.shape for v in (x, y, att) if v is not None]
    wide = [
        _primitive.shared_size(*sizes) if d != axis else 0
        for d, sizes in enumerate(zip(*shapes, strict=True))
    ][: x.ndim - depth]
    leaves = [(leaf, 1) for leaf in indices]
    shape = _primitive.result_shape(tuple(wide), axis, p["num_edges"], p["plan_axes"], leaves)
    return [_primitive.result_aval(x, shape, axis, jnp.dtype(p["dtype"]))]


def _sddmm_reference(x: Any, y: Any, *rest: Any, **p: Any) -> Any:
    att, indices = _split_att(rest, p["additive"])
    wide = pointwise.wide(x.dtype) if _is_float(x.dtype) else x.dtype
    depth = p["depth_axes"]

    def one(data: Any, plan: Any, axis: int) -> Any:
        x, y, *att = data
        plan = list(plan)
        order = plan.pop(0) if p["ordered"] else None
        x_rows = plan.pop(0) if p["x_indexed"] else None
        y_rows = plan.pop(0) if p["y_indexed"] else None
        there = jnp.ones(p["num_edges"], bool)
        if x_rows is not None:
            if order is not None:
                x_rows = jnp.zeros_like(x_rows).at[order].set(x_rows, mode="drop")
            there &= (x_rows >= 0) & (x_rows < x.shape[axis])
            x = _primitive.take_rows(x, x_rows, axis)
        if y_rows is not None:
            there &= (y_rows >= 0) & (y_rows < y.shape[axis])
            y = _primitive.take_rows(y, y_rows, axis)
        terms = att[0] * jnp.where(x + y >= 0, x + y, (x + y) * p["slope"]) if att else x * y
        out = jnp.sum(terms, axis=tuple(range(x.ndim - depth, x.ndim)))
        return jnp.where(_primitive.along(there, out.ndim, axis), out, 0)

    data = [v.astype(wide) for v in (x, y, *([] if att is None else [att]))]
    out = _primitive.over_plans(one, data, list(indices), p["axis"], p["plan_axes"])
    return [out.astype(p["dtype"])]


def _sddmm_attributes(
    axis: int,
    plan_axes: Any,
    depth_axes: int,
    num_edges: int,
    slope: float,
    dtype: Any,
    **flags: bool,
) -> dict[str, Any]:
    del num_edges, dtype
    return {
        "slope": np.float64(slope),
        "axis": np.int64(axis),
        "plan_axes": _primitive.plan_axes_attribute(plan_axes),
        "depth_axes": np.int64(depth_axes),
        **{name: np.bool_(value) for name, value in flags.items()},
    }


def _sddmm_batch(operands: list[Any], axes: list[Any], **p: Any) -> Any:
    count = 3 if p["additive"] else 2
    ranks = [v.ndim - (a is not None) for v, a in zip(operands[:2], axes[:2], strict=True)]
    data, plan, axis, plan_axes, place = _primitive.batch_data_and_plan(
        operands[:count],
        axes[:count],
        operands[count:],
        axes[count:],
        op="sddmm",
        axis=p["axis"],
        plan_axes=p["plan_axes"],
        main=0,
        most=min(ranks) - p["depth_axes"],
    )
    return [*data, *plan], {**p, "axis": axis, "plan_axes": plan_axes}, [place]


sddmm_p = _primitive.define(
    "sddmm",
    abstract=_sddmm_abstract,
    reference=_sddmm_reference,
    attributes=_sddmm_attributes,
    batch=_sddmm_batch,
)


def dots(
    graph: Graph | None,
    x: jax.Array,
    y: jax.Array,
    depth_axes: int,
    dtype: Any = None,
    *,
    att: Any = None,
    slope: float = 0.0,
    rows_of_x: Any = None,
) -> jax.Array:
    """Dot rows of x and y over their last axes, at the ends of each edge; no derivative.

    Without a graph row by row: x and y have the same rows, or y has one for all; `rows_of_x` says
    which row of x then stands in each place, -1 for a dot that is 0. With `att`, of x's rank, it is
    the dot of att and leaky_relu(x + y).
    """
    indices: list[Any] = [] if rows_of_x is None else [rows_of_x]
    ordered = False
    if graph is not None:
        ordered = not graph.receivers.identity
        indices = [graph.receivers.perm] if ordered else []
        indices += [graph.sender_of, graph.receivers.ids]
    (out,) = sddmm_p.bind(
        x,
        y,
        *([] if att is None else [att]),
        *indices,
        axis=0,
        plan_axes=(),
        depth_axes=depth_axes,
        num_edges=x.shape[0] if graph is None else graph.num_edges,
        ordered=ordered,
        x_indexed=len(indices) > 0,
        y_indexed=graph is not None,
        additive=att is not None,
        slope=float(slope),
        dtype=jnp.dtype(dtype or x.dtype),
    )
    return out


@_ad.custom_vjp(nondiff_argnums=(3, 4), linear=((0,), (1,)))
def edge_dots(x: jax.Array, y: jax.Array, graph: Graph, depth_axes: int, dtype: Any) -> jax.Array:
    """Return sddmm of checked arguments over the last axes, in x's dtype or its accumulator's."""
    return dots(graph, x, y, depth_axes, dtype)


def _sddmm_fwd(x: jax.Array, y: jax.Array, graph: Graph, depth_axes: int, dtype: Any) -> Any:
    return edge_dots(x, y, graph, depth_axes, dtype), (x, y, graph)


def _sddmm_bwd(depth_axes: int, dtype: Any, saved: Any, ct: Any) -> Any:
    del depth_axes, dtype
    x, y, graph = saved
    if ct.dtype == jax.dtypes.float0:
        return None, None, None
    return weighted_sum(y, ct, graph.T), weighted_sum(x, ct, graph), None


edge_dots.defvjp(_sddmm_fwd, _sddmm_bwd)
_sddmm_jit = _ad.jit(edge_dots, static_argnums=(3, 4))


def sddmm(graph: Graph, x: Any, y: Any) -> jax.Array:
    """Dot the ends of each edge: ``out[e] = Σ_d x[senders[e], d] y[receivers[e], d]``.

    Complex numbers are multiplied as they are: no end is conjugated.

    Args:
        graph: a :class:`Graph` of m edges from n_s senders to n_r receivers.
        x: ``[n_s, *prefix, D]``, integers, floats or complex.
        y: ``[n_r, *prefix, D]``.

    Returns:
        ``[m, *prefix]`` of dtype ``jnp.result_type(x, y)``, not weakly typed; narrow floats are
        summed in float32 and rounded once. An edge that the graph drops gives 0.

    Raises:
        TypeError: a wrong type of argument; bool operands.
        ValueError: sizes that do not belong together.

    Gradient:
        ``spmm(graph.T, y, ct)`` for x and ``spmm(graph, x, ct)`` for y; nothing is conjugated. Any
        order of reverse mode.

    Determinism:
        32 accumulators from +0, ``a[j] = fma(x, y, a[j])`` over the features j, j + 32, …, of
        complex numbers ``re = fma(-xi, yi, fma(xr, yr, re))`` and
        ``im = fma(xi, yr, fma(xr, yi, im))``; then neighbours are added, five times. Equal bits on
        every machine; exchanging real x and y changes none of them.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> graph = jax_index.Graph([0, 1], [1, 0], num_senders=2, num_receivers=2)
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> jax_index.sddmm(graph, x, x).tolist()
        [11.0, 11.0]
    """
    op = "sddmm"
    graph = check_graph(op, graph)
    x = _check.array(op, "x", x)
    y = _check.array(op, "y", y)
    for name, value in (("x", x), ("y", y)):
        numeric(op, name, value)
        if value.ndim < 2:
            fix = f"Add the axis of features, for example {name}[:, None]."
            expected = "an array of at least two axes, the last one of features"
            _check.fail(ValueError, op, name, expected, f"shape {value.shape}", fix)
    _check.rows(op, "x", x, 0, graph.num_senders, "one for each sender", _check.GRAPH_FIX)
    _check.rows(op, "y", y, 0, graph.num_receivers, "one for each receiver", _check.GRAPH_FIX)
    if x.shape[1:] != y.shape[1:]:
        fix = "Both ends of an edge have the same features."
        expected = f"an array of x's shape {x.shape} behind the first axis"
        _check.fail(ValueError, op, "y", expected, f"shape {y.shape}", fix)
    dtype = jnp.result_type(x, y)
    x, y = (computed(_sharding.whole(v, 0), dtype) for v in (x, y))
    x, y, graph = _primitive.align_varying(x, y, graph)
    return stored(_sddmm_jit(x, y, graph, 1, x.dtype), dtype)
