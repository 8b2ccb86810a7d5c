# SPDX-License-Identifier: Apache-2.0
"""Additive scores, and the sums over axes that an attention's operands share.

Every function is differentiable any number of times and computes with own kernels alone.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_index import _ad, _plan, _primitive, _sharding
from jax_index._fused import fused
from jax_index._graph import Graph
from jax_index.ops import pointwise, rows
from jax_index.ops.convert import convert
from jax_index.ops.matmul import additive_sums, dots, row_products
from jax_index.ops.pointwise import wide

# --- Axes that an operand shares ------------------------------------------------------------------


def _shared_axes(shape: tuple[int, ...], full: tuple[int, ...]) -> list[int]:
    """Return the axes of `full` along which an array of `shape` is shared."""
    return [d for d in range(len(full)) if d >= len(shape) or (shape[d] == 1 and full[d] != 1)]


@_ad.custom_vjp(nondiff_argnums=(1,), linear=((0,),))
def expand(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Repeat x along the axes that it lacks; the adjoint is a sum in the order of a dot."""
    return jnp.broadcast_to(x.reshape(x.shape + (1,) * (len(shape) - x.ndim)), shape)


@_ad.custom_vjp(nondiff_argnums=(1,), linear=((0,),))
def _collapse(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return reduce_product(x, None, shape)


expand.defvjp(
    lambda x, shape: (expand(x, shape), x.shape),
    lambda shape, source, ct: (_collapse(ct, source),),
)
_collapse.defvjp(
    lambda x, shape: (_collapse(x, shape), x.shape),
    lambda shape, source, ct: (expand(ct, source),),
)


def reduce_product(a: jax.Array, b: Any, shape: tuple[int, ...]) -> jax.Array:
    """Sum a b (a alone where b is None) over the axes that an array of `shape` lacks.

    In the order of a dot over those axes, flattened; no derivative.
    """
    axes = _shared_axes(shape, a.shape)
    if not axes:
        return (a if b is None else pointwise.apply("multiply", [a, b])).reshape(shape)
    b = jnp.ones_like(a) if b is None else b
    last = list(range(a.ndim - len(axes), a.ndim))
    a, b = (jnp.moveaxis(v, axes, last) for v in (a, b))
    return dots(None, a, b, len(axes)).reshape(shape)


# --- Dots of nodes with a shared vector -----------------------------------------------------------
# The three derivatives of Σ ct h att, with ct [n, *batch, heads], h [n, *batch, heads, D] and att
# [heads, D], are one another's derivatives. `nodes` [n] is each node's own number, -1 where it does
# not count: what such a node holds reaches no sum. All three obey it; JAX batches a rule rightly
# only where the result carries every batch that the rule reads.


class _Nodes(NamedTuple):
    """Which rows count, as pointwise reads a plan."""

    ids: jax.Array
    num_rows: int


def nodes_where(there: jax.Array) -> jax.Array:
    """Return each node's own number, -1 where it does not count."""
    return jnp.where(there, jax.lax.iota(jnp.int32, there.shape[0]), -1)


@_ad.custom_vjp(linear=((0,), (1,)))
def row_dot(h: jax.Array, att: jax.Array, nodes: jax.Array) -> jax.Array:
    """Return ⟨h, att⟩ for every node and head, in the accumulator type."""
    shared = att.reshape((1,) * (h.ndim - 2) + att.shape)
    return dots(None, h, shared, 1, wide(h.dtype), rows_of_x=nodes)


@_ad.custom_vjp(linear=((0,), (1,)))
def _outer(ct: jax.Array, att: jax.Array, nodes: jax.Array) -> jax.Array:
    shape = (1,) * (ct.ndim - 1) + att.shape
    given = [(ct, False), (att.reshape(shape), False)]
    counted = _Nodes(nodes, ct.shape[0])
    return pointwise.apply_slots("multiply", given, plan=counted, dtype=att.dtype)


def _to_be_merged(x: jax.Array, axes: int) -> jax.Array:
    """Return x whole on the first axes, which become one: an explicit mesh cannot cut that."""
    for axis in range(axes):
        x = _sharding.whole(x, axis)
    return x


@_ad.custom_vjp(linear=((0,), (1,)))
def _total(ct: jax.Array, h: jax.Array, nodes: jax.Array) -> jax.Array:
    """Return Σ ct h over nodes and batch, in the order of one row."""
    lead, (heads, depth) = h.shape[:-2], h.shape[-2:]
    count = math.prod(lead)
    h, ct = _to_be_merged(h, len(lead)), _to_be_merged(ct, len(lead))
    there = jnp.broadcast_to(_primitive.along(nodes >= 0, len(lead)), lead)
    place = nodes_where(there.reshape(count))
    return one_row(h.reshape(count, heads, depth), ct.reshape(count, heads), place)


row_dot.defvjp(
    lambda h, att, nodes: (row_dot(h, att, nodes), (h, att, nodes)),
    lambda saved, ct: (_outer(ct, *saved[1:]), _total(ct, saved[0], saved[2]), None),
)
_outer.defvjp(
    lambda ct, att, nodes: (_outer(ct, att, nodes), (ct, att, nodes)),
    lambda saved, g: (row_dot(g, *saved[1:]), _total(saved[0], g, saved[2]), None),
)
_total.defvjp(
    lambda ct, h, nodes: (_total(ct, h, nodes), (ct, h, nodes)),
    lambda saved, g: (row_dot(saved[1], g, saved[2]), _outer(saved[0], g, saved[2]), None),
)


def one_row(x: jax.Array, weights: Any, source: Any = None) -> jax.Array:
    """Sum weights times x over the first axis, as the edges of one row; -1 in `source`: without."""
    plan = _plan.one_row(x.shape[0])
    source = plan.perm if source is None else source
    # These edges are nodes, which the program may have cut by itself.
    return row_products(plan, source, x, weights, gathered=True)[0]


# --- Additive scores ------------------------------------------------------------------------------


@_ad.custom_vjp(linear=((0,),))
def halves(att: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both rows of att; the cotangents are put together, not added."""
    return att[0], att[1]


def _halves_bwd(_: None, cts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array]:
    # As jnp.stack, whose own transpose is a sum over an axis of one in older versions of JAX.
    return (jnp.concatenate([ct.reshape(1, *ct.shape) for ct in cts]),)


halves.defvjp(lambda att: (halves(att), None), _halves_bwd)


def _gat_scores(
    graph: Graph, h_s: jax.Array, h_r: jax.Array, att: jax.Array, slope: float
) -> jax.Array:
    for_sender, for_receiver = halves(att)
    sends, receives = (
        nodes_where(plan.indptr[1:] > plan.indptr[:-1]) for plan in (graph.senders, graph.receivers)
    )
    sender = rows.gather(row_dot(h_s, for_sender, sends), graph.senders)
    receiver = rows.gather(row_dot(h_r, for_receiver, receives), graph.receivers)
    return pointwise.leaky_relu(pointwise.add(sender, receiver), slope)


def _gat2_forward(slope: float, graph: Graph, inputs: Any) -> Any:
    h_s, h_r, att = inputs
    shared = att.reshape((1,) * (h_s.ndim - 2) + att.shape)
    return dots(graph, h_s, h_r, 1, wide(h_s.dtype), att=shared, slope=slope), None


def _gat2_backward(slope: float, graph: Graph, inputs: Any, known: Any, ct: Any) -> Any:
    del known
    h_s, h_r, att = inputs
    shared = att.reshape((1,) * (h_s.ndim - 2) + att.shape)
    full = wide(h_s.dtype)
    grads = []
    for side, mine, other in ((graph.T, h_s, h_r), (graph, h_r, h_s)):
        slopes = additive_sums(side, other, mine, ct, slope, values=False, dtype=full)
        grads.append(
            pointwise.apply_slots("multiply", [(slopes, False), (shared, False)], dtype=h_s.dtype)
        )
    sums = additive_sums(graph, h_s, h_r, ct, slope, values=True, dtype=full)
    sums = _to_be_merged(sums, sums.ndim - att.ndim)
    d_att = one_row(sums.reshape(math.prod(sums.shape[:-2]), *att.shape), None)
    return grads[0], grads[1], convert(d_att, att.dtype)


def _gat2_composed(slope: float, graph: Graph, inputs: Any) -> jax.Array:
    full = wide(inputs[0].dtype)
    h_s, h_r, att = (convert(v, full) for v in inputs)
    ends = pointwise.add(rows.gather(h_s, graph.senders), rows.gather(h_r, graph.receivers))
    terms = pointwise.rows_only(pointwise.leaky_relu(ends, slope), graph.receivers)
    edges = nodes_where(graph.receivers.ids >= 0)
    return pointwise.rows_only(row_dot(terms, att, edges), graph.receivers)


_gat2_scores = fused(_gat2_forward, _gat2_backward, _gat2_composed)


def additive_scores(
    graph: Graph, h_s: jax.Array, h_r: jax.Array, att: jax.Array, slope: float, version: int
) -> jax.Array:
    """Return the scores of GAT (version 1) or GATv2 (version 2), in the accumulator type."""
    if version == 1:
        return _gat_scores(graph, h_s, h_r, att, slope)
    return _gat2_scores(slope, graph, (h_s, h_r, att))
