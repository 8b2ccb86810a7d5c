# SPDX-License-Identifier: Apache-2.0
"""Attention of a part's nodes to senders in all parts, with the bits of the unsharded op.

A receiver's owner has all that its scores and sums need once the senders' rows have come. The
derivative of a sender's row is summed by the sender's owner: the factors of cut edges are sent to
it, and the rows that they multiply.
"""

from __future__ import annotations

import math
from typing import Any

import jax

from jax_index._fused import fused
from jax_index.ops import attention, halo, pointwise, rows
from jax_index.ops.attention_arguments import Static
from jax_index.ops.attention_scores import halves, nodes_where, one_row, row_dot
from jax_index.ops.convert import convert
from jax_index.ops.matmul import additive_sums, dots, products
from jax_index.ops.pointwise import wide

# --- Values ---------------------------------------------------------------------------------------
# `where` is the part and the values with their halo, which are no operand of the derivative.


def _forward(static: Static, where: Any, inputs: Any) -> Any:
    part, reach = where
    raw, _, *edges = inputs
    return attention.forward(static, part.near.graph, (raw, reach, *edges))


def _backward(static: Static, where: Any, inputs: Any, known: Any, ct: Any) -> Any:
    part, reach = where
    raw, _, *edges = inputs
    given = (raw, reach, *edges)
    found = attention.edge_gradients(static, part.near.graph, given, known, ct)
    d_raw, factor, *rest = found
    (far_ct,) = halo.reached(part.T, ct)
    d_v = products(part.far.graph, far_ct, halo.to_far(factor, part))
    return d_raw, d_v, *rest


def _composed(static: Static, where: Any, inputs: Any) -> jax.Array:
    part, _ = where
    raw, v, *edges = inputs
    a = attention.shares(static, part.near.graph, raw, edges)
    return convert(halo.spmm(convert(v, a.dtype), a, None, part), v.dtype)


_attend = fused(_forward, _backward, _composed)


# --- Queries and keys -----------------------------------------------------------------------------
# One rule for scores and values: rows go in one all_to_all, numbers of cut edges in another.


def _dot_forward(static: Static, where: Any, inputs: Any) -> Any:
    part, keys, values = where
    q, _, _, *edges = inputs
    raw = dots(part.near.graph, keys, q, 1, wide(q.dtype))
    out, known = attention.forward(static, part.near.graph, (raw, values, *edges))
    return out, (raw, known)


def _dot_backward(static: Static, where: Any, inputs: Any, known: Any, ct: Any) -> Any:
    part, keys, values = where
    q, _, _, *edges = inputs
    raw, known = known
    near, far = part.near.graph, part.far.graph
    given = (raw, values, *edges)
    d_raw, factor, *rest = attention.edge_gradients(static, near, given, known, ct)
    far_ct, far_q = halo.reached(part.T, ct, q)
    far_factor, far_raw = halo.brought(part, factor, d_raw)
    d_q = products(near, keys, d_raw)
    return d_q, products(far, far_q, far_raw), products(far, far_ct, far_factor), *rest


def _dot_composed(static: Static, where: Any, inputs: Any) -> jax.Array:
    part = where[0]
    q, k, v, *edges = inputs
    raw = halo.sddmm(k, q, None, part, 1, wide(q.dtype))
    return _composed(static, (part, None), (raw, v, *edges))


_dot_attend = fused(_dot_forward, _dot_backward, _dot_composed)


def dot_attention(
    part: Any, q: jax.Array, k: jax.Array, v: jax.Array, edges: Any, static: Static
) -> jax.Array:
    """Return graph_attention of checked arguments."""
    reach = halo.reached(part, k) if k is v else halo.reached(part, k, v)
    return _dot_attend(static, (part, reach[0], reach[-1]), (q, k, v, *edges))


# --- Additive scores ------------------------------------------------------------------------------


def gat(
    part: Any, h_s: jax.Array, h_r: jax.Array, att: jax.Array, edges: Any, static: Static, form: Any
) -> jax.Array:
    """Return gat_attention of checked arguments."""
    (reach,) = halo.reached(part, h_s)
    slope, version = form
    scored, values = pointwise.fork(h_s)
    if version == 1:
        raw = _gat_scores(part, scored, reach, h_r, att, slope)
    else:
        raw = _gat2_scores(slope, (part, reach), (scored, h_r, att))
    return _attend(static, (part, reach), (raw, values, *edges))


def _with_edges(plan: Any) -> jax.Array:
    return nodes_where(plan.indptr[1:] > plan.indptr[:-1])


def _gat_scores(
    part: Any, h_s: jax.Array, reach: jax.Array, h_r: jax.Array, att: jax.Array, slope: float
) -> jax.Array:
    for_sender, for_receiver = halves(att)
    near, far = part.near.graph, part.far.graph
    own = row_dot(h_s, for_sender, _with_edges(far.receivers))
    # The same dots of the rows that came: no second exchange. Derivatives go through `own`.
    came = row_dot(reach, jax.lax.stop_gradient(for_sender), _with_edges(near.senders))
    sender = halo.gather(own, jax.lax.stop_gradient(came), part)
    receiver = rows.gather(row_dot(h_r, for_receiver, _with_edges(near.receivers)), near.receivers)
    return pointwise.leaky_relu(pointwise.add(sender, receiver), slope)


def _gat2_forward(slope: float, where: Any, inputs: Any) -> Any:
    part, reach = where
    _, h_r, att = inputs
    shared = att.reshape((1,) * (h_r.ndim - 2) + att.shape)
    full = wide(h_r.dtype)
    return dots(part.near.graph, reach, h_r, 1, full, att=shared, slope=slope), None


def _gat2_backward(slope: float, where: Any, inputs: Any, known: Any, ct: Any) -> Any:
    del known
    part, reach = where
    h_s, h_r, att = inputs
    shared = att.reshape((1,) * (h_s.ndim - 2) + att.shape)
    full = wide(h_s.dtype)
    (far_r,) = halo.reached(part.T, h_r)
    grads = []
    for graph, mine, other, weights in (
        (part.far.graph, h_s, far_r, halo.to_far(ct, part)),
        (part.near.graph, h_r, reach, ct),
    ):
        slopes = additive_sums(graph, other, mine, weights, slope, values=False, dtype=full)
        grads.append(
            pointwise.apply_slots("multiply", [(slopes, False), (shared, False)], dtype=h_s.dtype)
        )
    sums = additive_sums(part.near.graph, reach, h_r, ct, slope, values=True, dtype=full)
    d_att = one_row(sums.reshape(math.prod(sums.shape[:-2]), *att.shape), None)
    return grads[0], grads[1], convert(d_att, att.dtype)


def _gat2_composed(slope: float, where: Any, inputs: Any) -> jax.Array:
    part, _ = where
    full = wide(inputs[0].dtype)
    h_s, h_r, att = (convert(v, full) for v in inputs)
    receivers = part.near.graph.receivers
    ends = pointwise.add(halo.gather(h_s, None, part), rows.gather(h_r, receivers))
    terms = pointwise.rows_only(pointwise.leaky_relu(ends, slope), receivers)
    edges = nodes_where(receivers.ids >= 0)
    return pointwise.rows_only(row_dot(terms, att, edges), receivers)


_gat2_scores = fused(_gat2_forward, _gat2_backward, _gat2_composed)
