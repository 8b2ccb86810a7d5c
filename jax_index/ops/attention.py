# SPDX-License-Identifier: Apache-2.0
"""Attention over the edges of a graph, fused: memory O(n d + m heads), forward and backward.

No array of edges times features is made: scores are dots at the ends of an edge, values are read
where they are summed, and the backward pass computes the weights anew from the saved scores.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_index import _ad, _check, _primitive
from jax_index._fused import fused
from jax_index._graph import Graph
from jax_index.ops import pointwise, reductions, rows, segment_extremum
from jax_index.ops.attention_arguments import Static, dot_arguments, gat_arguments
from jax_index.ops.attention_order import in_row_order
from jax_index.ops.attention_scores import additive_scores, expand, reduce_product
from jax_index.ops.convert import convert
from jax_index.ops.graph_arguments import check_graph, stored
from jax_index.ops.matmul import dots, edge_dots, products, weighted_sum
from jax_index.ops.pointwise import wide


def _pointwise(function: str, static: Static, graph: Graph, **v: Any) -> jax.Array:
    """Apply an attention function of cpp/ops/pointwise.h."""
    given = [
        (v["raw"], False),
        (v.get("multiplier"), False),
        (v.get("bias"), False),
        (v.get("largest"), True),
        (v.get("total"), True),
        (v.get("weight"), False),
        (v.get("cotangent"), False),
        (v.get("delta"), True),
    ]
    dtype = v["raw"].dtype
    return pointwise.apply_slots(
        function, given, plan=graph.receivers, parameters=static[:3], dtype=dtype
    )


def _normaliser(static: Static, graph: Graph, score: dict[str, Any]) -> Any:
    """Return each row's largest score (None for a plain sum), exp of the scores, and their sum."""
    *_, normalize, offset = static
    largest = None
    if normalize == "softmax":
        s = _pointwise("attention_score", static, graph, **score)
        largest = segment_extremum.plain(s, graph.receivers, False)
    p = _pointwise("attention_exp", static, graph, **score, largest=largest)
    total = rows.sum_rows(p, graph.receivers)
    return largest, p, _with_offset(total, largest, offset)


def _with_offset(total: jax.Array, largest: Any, offset: float) -> jax.Array:
    if offset == 0:
        return total
    if largest is None:
        return pointwise.apply("add_constant", [total], parameters=(offset,))
    return pointwise.apply("add_offset", [total, largest], parameters=(offset,))


def forward(static: Static, graph: Graph, inputs: Any) -> Any:
    """Return the attention of raw scores and values, and what its derivative wants to know."""
    raw, v, multiplier, bias, weight = inputs
    score = {"raw": raw, "multiplier": multiplier, "bias": bias}
    largest, p, total = _normaliser(static, graph, score)
    if weight is not None:
        p = _pointwise(
            "attention_numerator", static, graph, **score, largest=largest, weight=weight
        )
    out = products(graph, v, p, total)
    return out, (largest, total, out)


def _backward(static: Static, graph: Graph, inputs: Any, known: Any, ct: Any) -> Any:
    d_raw, factor, *rest = edge_gradients(static, graph, inputs, known, ct)
    return d_raw, products(graph.T, ct, factor), *rest


def edge_gradients(static: Static, graph: Graph, inputs: Any, known: Any, ct: Any) -> Any:
    """Return what each edge has of the derivative: its weights sum ct into that of the values.

    Returns:
        The cotangent of raw, the weights, the cotangents of the per-edge arrays.
    """
    raw, v, multiplier, bias, weight = inputs
    largest, total, out = known
    full = raw.dtype
    share = {
        "raw": raw,
        "multiplier": multiplier,
        "bias": bias,
        "largest": largest,
        "total": total,
        "weight": weight,
    }
    delta = dots(None, ct, out, 1, full)
    dp = dots(graph, v, ct, 1, full)
    grads = {**share, "cotangent": dp, "delta": delta}
    d_raw = _pointwise("attention_raw_grad", static, graph, **grads)
    factor = _pointwise("attention_factor", static, graph, **share)
    d_multiplier = d_bias = d_weight = None
    if multiplier is not None or bias is not None:
        ds = _pointwise("attention_score_grad", static, graph, **grads)
        if multiplier is not None:
            scaled = pointwise.scale(raw, static[0])
            d_multiplier = reduce_product(ds, scaled, multiplier.shape)
        if bias is not None:
            d_bias = reduce_product(ds, None, bias.shape)
    if weight is not None:
        share["weight"] = None
        a = _pointwise("attention_share", static, graph, **share)
        d_weight = reduce_product(a, dp, weight.shape)
    return d_raw, factor, d_multiplier, d_bias, d_weight


def _composed(static: Static, graph: Graph, inputs: Any) -> jax.Array:
    raw, v, *edges = inputs
    a = shares(static, graph, raw, edges)
    return convert(weighted_sum(convert(v, a.dtype), a, graph), v.dtype)


def shares(static: Static, graph: Graph, raw: Any, edges: Any) -> jax.Array:
    """Return the factor of each edge's value, composed of ops that have rules of their own."""
    scale, low, high, normalize, offset = static
    plan = graph.receivers
    kept = [x if x is None else pointwise.rows_only(x, plan) for x in (raw, *edges)]
    raw, multiplier, bias, weight = kept
    s = pointwise.scale(raw, scale)
    if multiplier is not None:
        s = pointwise.multiply(s, expand(multiplier, s.shape))
    if bias is not None:
        s = pointwise.add(s, expand(bias, s.shape))
    s = pointwise.rows_only(pointwise.clip(s, low, high), plan)
    if normalize == "softmax":
        largest, p, total = reductions.exponentials(s, plan)
        if offset:
            # Σ exp(s) + offset is shifted by m as a whole: m counts as a constant.
            constant = _with_offset(jnp.zeros_like(largest), largest, offset)
            total = pointwise.add(total, jax.lax.stop_gradient(constant))
    else:
        p, summed = pointwise.fork(pointwise.exp_below(s, jnp.zeros_like(s)))
        total = pointwise.add_constant(rows.sum_rows(summed, plan), offset)
    a = pointwise.rows_only(pointwise.divide_or_zero(p, rows.gather(total, plan)), plan)
    if weight is not None:
        a = pointwise.multiply(a, expand(weight, a.shape))
    return a


_attend = fused(forward, _backward, _composed)


def _attend_values(graph: Graph, raw: Any, v: Any, edges: Any, static: Static) -> jax.Array:
    return _attend(static, graph, (raw, v, *edges))


def _dot_attention(graph: Graph, q: Any, k: Any, v: Any, edges: Any, static: Static) -> jax.Array:
    graph, edges = in_row_order(graph, edges, q.shape[1:-1])
    raw = edge_dots(k, q, graph, 1, wide(q.dtype))
    return _attend_values(graph, raw, v, edges, static)


def _gat(
    graph: Graph, h_s: Any, h_r: Any, att: Any, edges: Any, static: Static, form: Any
) -> jax.Array:
    graph, edges = in_row_order(graph, edges, h_r.shape[1:-1])
    scored, values = pointwise.fork(h_s)
    raw = additive_scores(graph, scored, h_r, att, *form)
    return _attend_values(graph, raw, values, edges, static)


_dot_attention_jit = _ad.jit(_dot_attention, static_argnums=(5,))
_gat_jit = _ad.jit(_gat, static_argnums=(5, 6))


# --- Public ops ---------------------------------------------------------------------------------


def edge_softmax(graph: Graph, scores: Any) -> jax.Array:
    """Normalise scores over the edges that enter a node: ``exp(s - m) / Σ exp(s - m)``.

    m is the largest score of the receiver.

    Args:
        graph: a :class:`Graph` of m edges.
        scores: ``[m, ...]``, floats, or integers in the dtype of ``jnp.mean``.

    Returns:
        ``[m, ...]``, the scores' shape. A dropped edge, and an edge of a receiver whose scores are
        all -inf, gets 0.

    Raises:
        TypeError: a wrong type of argument.
        ValueError: sizes that do not belong together.

    Gradient:
        ``out (ct - Σ out ct)``, the sum over the receiver's edges; any order of reverse mode.

    Determinism:
        As :func:`segment_softmax`, which it is with the receivers as segments.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> graph = jax_index.Graph([0, 1, 0], [0, 0, 1], num_senders=2, num_receivers=2)
        >>> jax_index.edge_softmax(graph, jnp.zeros(3)).tolist()
        [0.5, 0.5, 1.0]
    """
    op = "edge_softmax"
    graph = check_graph(op, graph)
    scores = _check.array(op, "scores", scores)
    if scores.ndim == 0:
        fix = "Pass a score for each edge."
        expected = f"an array [{graph.num_edges}, ...]"
        _check.fail(ValueError, op, "scores", expected, "a scalar", fix)
    _check.rows(op, "scores", scores, 0, graph.num_edges, "one for each edge", _check.GRAPH_FIX)
    scores, graph = _primitive.align_varying(scores, graph)
    return reductions.reduce(op, reductions.softmax_rule, scores, graph.receivers, "scores")


def graph_attention(
    graph: Graph,
    q: Any,
    k: Any,
    v: Any,
    *,
    scale: float | None = None,
    score_weights: Any = None,
    bias: Any = None,
    clip: tuple[float, float] | None = None,
    normalize: str = "softmax",
    denominator_offset: float = 0.0,
    weights: Any = None,
) -> jax.Array:
    """Attend from each receiver to its senders: ``out[r] = Σ_e c[e] a[e] v[senders[e]]``.

    With ``s = clip(scale ⟨q[receiver], k[sender]⟩ score_weights + bias)``:
    ``a = exp(s) / (Σ exp(s) + denominator_offset)``, the sum over the receiver's edges, and c the
    ``weights`` (dropout factors, say).

    Args:
        graph: a :class:`Graph` of m edges from n_s senders to n_r receivers.
        q: ``[n_r, *batch, heads, D]``, floats.
        k: ``[n_s, *batch, heads, D]``.
        v: ``[n_s, *batch, heads, D_v]``.
        scale: a Python number; None: ``1 / √D``.
        score_weights: per-edge array that multiplies scores. Per-edge arrays are ``[m, *prefix]``,
            prefix a prefix of ``[*batch, heads]`` or an axis of it replaced by 1.
        bias: per-edge array that is added to scores.
        clip: ``(low, high)``; its derivative is 1 on ``[low, high]`` and 0 outside.
        normalize: ``"softmax"``: the row's largest score m is subtracted first, which changes no
            value and cannot overflow; ``"sum"``: exp of the score as it is.
        denominator_offset: a Python number.
        weights: per-edge array that multiplies after normalisation.

    Returns:
        ``[n_r, *batch, heads, D_v]`` of ``jnp.result_type(q, k, v)``. A receiver with no edge, or
        whose scores are all -inf, gets 0. Narrow floats are computed in float32; the result is
        rounded once.

    Raises:
        TypeError: a wrong type of argument.
        ValueError: sizes that do not belong together, or an unknown normalize.

    Gradient:
        For q, k, v, score_weights, bias and weights; fused as the forward pass is: with
        ``δ = ⟨ct, out⟩`` and ``dp = ⟨ct, v⟩``, ``ds = a (c dp - δ)``. Any order of reverse mode.

    Determinism:
        Dots in the order of :func:`sddmm`, sums in that of :func:`spmm`, exp within one unit in the
        last place: equal bits on every machine. Of an array that is passed twice (as k and v, say)
        JAX itself adds the two cotangents, as it does in derivatives of the gradient.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> graph = jax_index.Graph([0, 1, 0], [0, 0, 1], num_senders=2, num_receivers=2)
        >>> x = jnp.array([[[1.0]], [[3.0]]])
        >>> jax_index.graph_attention(graph, 0 * x, x, x).ravel().tolist()
        [2.0, 1.0]
    """
    op = "graph_attention"
    graph = check_graph(op, graph)
    given = {"score_weights": score_weights, "bias": bias, "weights": weights}
    how = {"clip": clip, "normalize": normalize, "denominator_offset": denominator_offset}
    q, k, v, edges, static, dtype = dot_arguments(
        op, graph, graph.num_senders, q, k, v, scale, given, how
    )
    graph, q, k, v, edges = _primitive.align_varying(graph, q, k, v, edges)
    return stored(_dot_attention_jit(graph, q, k, v, edges, static), dtype)


def gat_attention(
    graph: Graph,
    h_s: Any,
    h_r: Any,
    att: Any,
    *,
    slope: float = 0.2,
    version: int = 1,
    scale: float = 1.0,
    score_weights: Any = None,
    bias: Any = None,
    clip: tuple[float, float] | None = None,
    normalize: str = "softmax",
    denominator_offset: float = 0.0,
    weights: Any = None,
) -> jax.Array:
    """Attend with additive scores: GAT (version 1) or GATv2 (version 2); the values are h_s.

    Version 1: ``s = leaky_relu(⟨att[0], h_s[sender]⟩ + ⟨att[1], h_r[receiver]⟩)`` (Velickovic et
    al., Graph attention networks, 2018). Version 2: ``s = ⟨att, leaky_relu(h_s[sender] +
    h_r[receiver])⟩`` (Brody et al., How attentive are graph attention networks?, 2022). Then scale
    and the rest as in :func:`graph_attention`.

    Args:
        graph: a :class:`Graph` of m edges from n_s senders to n_r receivers.
        h_s: ``[n_s, *batch, heads, D]``, floats.
        h_r: ``[n_r, *batch, heads, D]``.
        att: version 1 ``[2, heads, D]``, version 2 ``[heads, D]``.
        slope: of leaky_relu below 0, a Python number.
        version: 1 or 2.
        scale: see :func:`graph_attention`, as all that follow.
        score_weights: per-edge factors of scores.
        bias: per-edge summands of scores.
        clip: bounds of scores.
        normalize: ``"softmax"`` or ``"sum"``.
        denominator_offset: a Python number.
        weights: per-edge factors after normalisation.

    Returns:
        ``[n_r, *batch, heads, D]`` of ``jnp.result_type(h_s, h_r, att)``.

    Raises:
        TypeError: a wrong type of argument.
        ValueError: sizes that do not belong together, or an unknown version.

    Gradient:
        For all arrays; no array of edges times features is made. Any order of reverse mode.

    Determinism:
        As :func:`graph_attention`; sums over all nodes in the order of one row.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> graph = jax_index.Graph([0, 1, 0], [0, 0, 1], num_senders=2, num_receivers=2)
        >>> h = jnp.array([[[1.0]], [[3.0]]])
        >>> jax_index.gat_attention(graph, h, h, jnp.zeros((2, 1, 1))).ravel().tolist()
        [2.0, 1.0]
    """
    op = "gat_attention"
    graph = check_graph(op, graph)
    given = {"score_weights": score_weights, "bias": bias, "weights": weights}
    how = {"clip": clip, "normalize": normalize, "denominator_offset": denominator_offset}
    h_s, h_r, att, edges, static, form, dtype = gat_arguments(
        op, graph, graph.num_senders, h_s, h_r, att, slope, version, scale, given, how
    )
    graph, h_s, h_r, att, edges = _primitive.align_varying(graph, h_s, h_r, att, edges)
    return stored(_gat_jit(graph, h_s, h_r, att, edges, static, form), dtype)
