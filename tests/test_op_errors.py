# SPDX-License-Identifier: Apache-2.0
"""Every refusal of the segment reductions, of products and of attention, with its whole text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import Graph, edge_softmax, gat_attention, graph_attention, sddmm, spmm
from jax_index import segment_max as smax

from .error_table import LIST, MADE, SIZE, STATIC, f32, i32, keys, plan, traced


def graph():
    return Graph([0, 1, 1], [0, 0, 1], num_senders=2, num_receivers=2)


def stacked():
    return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), graph())


def nodes():
    return [f32(2, 1, 3)] * 3


def c64(*shape):
    return jnp.ones(shape, jnp.complex64)


IDS = [0, 1, 1]
MODES = "None, 'drop', 'fill', 'promise_in_bounds' or 'raise'"
CLIP = "Clip the ids first: jnp.clip(segment_ids, 0, num_segments - 1)."
EDGES = "Use the graph that was made for these nodes and edges."
SPLIT = "Reduce real and imaginary parts separately."
NUMBER = "It is part of the program; multiply the scores by score_weights instead."
FORMS = "Version 1 takes [2, heads, D] (sender, receiver), version 2 [heads, D]."

# (op, call, kind of error, text)
TABLE = [
    (
        "segment_max",
        lambda: smax(1.0, [0]),
        ValueError,
        "data must be an array of at least one axis, got a scalar. "
        "Reduce over at least one axis: data.reshape(1).",
    ),
    (
        "segment_max",
        lambda: smax(f32(3, 2), [0, 1]),
        ValueError,
        "data must be an array with 2 entries on axis 0 (one for each segment id), "
        "got shape (3, 2). Pass one segment id for each entry.",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), IDS, 2, mode="clip"),
        ValueError,
        f"mode must be {MODES}, got 'clip'. {CLIP}",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), IDS, 2, mode=jax.lax.GatherScatterMode.CLIP),
        ValueError,
        f"mode must be {MODES}, got <GatherScatterMode.CLIP: 1>. {CLIP}",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), IDS, 2, mode="wrap"),
        ValueError,
        f"mode must be {MODES}, got 'wrap'. Wrap the ids first: segment_ids % num_segments.",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), IDS, 2, mode=7),
        ValueError,
        f"mode must be {MODES}, got 7. -1 never wraps; ids out of range belong to no segment.",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), plan(), mode="drop"),
        ValueError,
        f"mode must be None with a plan, got 'drop'. {MADE}",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), plan(), 5),
        ValueError,
        "num_segments must be None or the plan's 2, got 5. "
        "Leave num_segments out, or use the plan made for it.",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), IDS, 2.0),
        TypeError,
        f"num_segments must be {SIZE}, got 2.0. Pass num_segments as a Python int.",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), IDS, -1),
        ValueError,
        f"num_segments must be {SIZE}, got -1. Pass num_segments in that range; sizes are 32-bit.",
    ),
    (
        "segment_max",
        lambda: traced(lambda n: smax(f32(3), IDS, n), 2),
        TypeError,
        f"num_segments must be {SIZE}, got a traced array of shape () and dtype int32. {STATIC}",
    ),
    (
        "segment_max",
        lambda: traced(lambda i: smax(f32(3), i), i32(3)),
        ValueError,
        "num_segments must be given with traced ids, got None. The number of rows is part of the "
        "program: pass num_segments as a Python int.",
    ),
    (
        "segment_max",
        lambda: traced(lambda i: smax(f32(3), i, 2, mode="raise"), i32(3)),
        ValueError,
        "mode must be 'drop' for traced segment_ids, got 'raise'. "
        "Values of a traced array cannot raise: pass mode='drop'.",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), [IDS, IDS], 2),
        ValueError,
        f"segment_ids must be one-dimensional, got shape (2, 3). {LIST}",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), [0.0, 1.0, 1.0]),
        TypeError,
        f"segment_ids must be an integer array, got dtype float64. {LIST}",
    ),
    (
        "segment_max",
        lambda: traced(lambda i: smax(f32(3), i, 2), f32(3)),
        TypeError,
        "segment_ids must be an integer array, got dtype float32. "
        "Pass a one-dimensional array of integers.",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), stacked().receivers),
        TypeError,
        "plan.ids must be an int32 array of shape (3,), got an array of shape (2, 3) and dtype "
        "int32. A stacked plan goes through jax.vmap or jax.lax.scan.",
    ),
    (
        "segment_max",
        lambda: smax(f32(3), IDS, out_sharding="x"),
        TypeError,
        "out_sharding must be None, a NamedSharding or a PartitionSpec, got 'x'. "
        "The sharding of the result, over an explicit mesh.",
    ),
    (
        "segment_sum",
        lambda: jax_index.segment_sum(f32(3) > 0, IDS),
        TypeError,
        "data must be of a numeric dtype, got dtype bool. Count with data.astype(jnp.int32).",
    ),
    (
        "segment_prod",
        lambda: jax_index.segment_prod(c64(3), IDS),
        TypeError,
        f"data must be real, got dtype complex64. {SPLIT}",
    ),
    (
        "segment_var",
        lambda: jax_index.segment_var(c64(3), IDS),
        TypeError,
        f"data must be real, got dtype complex64. {SPLIT}",
    ),
    (
        "segment_mean",
        lambda: jax_index.segment_mean(keys(3), IDS),
        TypeError,
        "data must be of a numeric dtype, got dtype key<fry>. Only numbers can be reduced.",
    ),
    (
        "segment_max",
        lambda: smax(np.zeros(3, jax.dtypes.float0), IDS),
        TypeError,
        "data must be of a numeric dtype, got dtype float0. Only numbers can be reduced.",
    ),
    (
        "spmm",
        lambda: spmm(1, f32(2)),
        TypeError,
        "graph must be a Graph, got 1. "
        "Make one with jax_index.Graph(senders, receivers, num_senders=, num_receivers=).",
    ),
    (
        "spmm",
        lambda: spmm(stacked(), f32(2)),
        TypeError,
        "graph.senders.ids must be an int32 array of shape (3,), got an array of shape (2, 3) and "
        "dtype int32. A stacked plan goes through jax.vmap or jax.lax.scan.",
    ),
    (
        "spmm",
        lambda: spmm(with_field("receivers", stacked().receivers), f32(2)),
        TypeError,
        "graph.receivers.ids must be an int32 array of shape (3,), got an array of shape (2, 3) "
        "and dtype int32. A stacked plan goes through jax.vmap or jax.lax.scan.",
    ),
    (
        "spmm",
        lambda: spmm(with_field("sender_of", stacked().sender_of), f32(2)),
        TypeError,
        "graph.sender_of must be an int32 array of shape (3,), got an array of shape (2, 3) and "
        "dtype int32. A stacked graph goes through jax.vmap or jax.lax.scan.",
    ),
    (
        "spmm",
        lambda: spmm(with_field("receiver_of", f32(3)), f32(2)),
        TypeError,
        "graph.receiver_of must be an int32 array of shape (3,), got an array of shape (3,) and "
        "dtype float32. Pass the graph as Graph returned it.",
    ),
    (
        "spmm",
        lambda: spmm(graph(), f32(3, 2)),
        ValueError,
        "x must be an array with 2 entries on axis 0 (one for each sender), got shape (3, 2). "
        + EDGES,
    ),
    (
        "spmm",
        lambda: spmm(graph(), 1.0),
        ValueError,
        "x must be an array of at least one axis, got a scalar. Pass a row for each sender.",
    ),
    (
        "spmm",
        lambda: spmm(graph(), f32(2), f32(2)),
        ValueError,
        "weights must be an array with 3 entries on axis 0 (one for each edge), got shape (2,). "
        + EDGES,
    ),
    (
        "spmm",
        lambda: spmm(graph(), f32(2), 2.0),
        ValueError,
        "weights must be [3, ...], got a scalar. Give every edge one: jnp.full(3, weights).",
    ),
    (
        "spmm",
        lambda: spmm(graph(), f32(2, 3), f32(3, 2)),
        ValueError,
        "weights must be an array of shape [3, *prefix of (3,)], got shape (3, 2). "
        "Its axes behind the first are the first ones of x, or fewer of them.",
    ),
    (
        "spmm",
        lambda: spmm(graph(), f32(2) > 0),
        TypeError,
        "x must be of a numeric dtype, got dtype bool. Count with x.astype(jnp.int32).",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), weights=c64(3)),
        TypeError,
        "weights must be real, got dtype complex64. Multiply real and imaginary parts separately.",
    ),
    (
        "sddmm",
        lambda: sddmm(graph(), f32(2), f32(2)),
        ValueError,
        "x must be an array of at least two axes, the last one of features, got shape (2,). "
        "Add the axis of features, for example x[:, None].",
    ),
    (
        "sddmm",
        lambda: sddmm(graph(), f32(2, 3), f32(2, 4)),
        ValueError,
        "y must be an array of x's shape (2, 3) behind the first axis, got shape (2, 4). "
        "Both ends of an edge have the same features.",
    ),
    (
        "sddmm",
        lambda: sddmm(graph(), f32(2, 3), f32(3, 3)),
        ValueError,
        "y must be an array with 2 entries on axis 0 (one for each receiver), got shape (3, 3). "
        + EDGES,
    ),
    (
        "edge_softmax",
        lambda: edge_softmax(graph(), 1.0),
        ValueError,
        "scores must be an array [3, ...], got a scalar. Pass a score for each edge.",
    ),
    (
        "edge_softmax",
        lambda: edge_softmax(graph(), f32(2)),
        ValueError,
        "scores must be an array with 3 entries on axis 0 (one for each edge), got shape (2,). "
        + EDGES,
    ),
    (
        "edge_softmax",
        lambda: edge_softmax(graph(), c64(3)),
        TypeError,
        f"scores must be real, got dtype complex64. {SPLIT}",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), f32(2, 3), *nodes()[1:]),
        ValueError,
        "q must be a float array [2, *batch, heads, features], got an array of shape (2, 3) and "
        "dtype float32. For one head reshape it: q[:, None, :].",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), i32(2, 1, 3), *nodes()[1:]),
        TypeError,
        "q must be a float array [2, *batch, heads, features], got an array of shape (2, 1, 3) and "
        "dtype int32. Convert it first: q.astype(jnp.float32).",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), f32(2, 1, 3), f32(2, 1, 4), f32(2, 1, 3)),
        ValueError,
        "k must be an array of q's shape (2, 1, 3) behind the first axis, got shape (2, 1, 4). "
        "Queries and keys have the same batch, heads and features.",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), f32(2, 1, 3), f32(2, 1, 3), f32(2, 2, 3)),
        ValueError,
        "v must be an array of q's shape (2, 1, 3) but for the last axis, got shape (2, 2, 3). "
        "Values have the batch and the heads of queries and keys.",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), f32(2, 1, 3), f32(2, 1, 3), f32(3, 1, 3)),
        ValueError,
        "v must be an array with 2 entries on axis 0 (one for each sender), got shape (3, 1, 3). "
        + EDGES,
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), clip=5),
        TypeError,
        "clip must be None or (low, high), got 5. Pass clip=(-5.0, 5.0), for example.",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), clip=("a", 1)),
        TypeError,
        "clip must be a number, got 'a'. Pass clip as a Python number.",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), clip=(1, 0)),
        ValueError,
        "clip must be (low, high), low <= high, got (1, 0). The lower bound stands first.",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), normalize="max"),
        ValueError,
        "normalize must be 'softmax' or 'sum', got 'max'. 'sum' weighs with exp(score) as it is; "
        "'softmax' subtracts the row's largest first.",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), denominator_offset="x"),
        TypeError,
        "denominator_offset must be a number, got 'x'. Pass denominator_offset as a Python number.",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), denominator_offset=float("inf")),
        ValueError,
        "denominator_offset must be finite, got inf. Every result would be NaN, or none would "
        "count: pass a finite number.",
    ),
    (
        "graph_attention",
        lambda: traced(lambda s: graph_attention(graph(), *nodes(), scale=s), 1.0),
        TypeError,
        "scale must be a Python number, got a traced array of shape () and dtype float32. "
        + NUMBER,
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), bias=f32(3, 4)),
        ValueError,
        "bias must be an array of shape [3, *prefix of (1,)], got shape (3, 4). "
        "Its axes behind the first are the first ones of [*batch, heads], or fewer of them.",
    ),
    (
        "graph_attention",
        lambda: graph_attention(graph(), *nodes(), weights=f32(3) > 0),
        TypeError,
        "weights must be of a numeric dtype, got dtype bool. Count with weights.astype(jnp.int32).",
    ),
    (
        "gat_attention",
        lambda: gat_attention(graph(), *nodes(), version=3),
        ValueError,
        "version must be 1 or 2, got 3. 1 is GAT, 2 is GATv2.",
    ),
    (
        "gat_attention",
        lambda: gat_attention(graph(), *nodes()[:2], f32(1, 3)),
        ValueError,
        "att must be a float array of shape (2, 1, 3), got an array of shape (1, 3) and dtype "
        f"float32. {FORMS}",
    ),
    (
        "gat_attention",
        lambda: gat_attention(graph(), *nodes(), version=2),
        ValueError,
        "att must be a float array of shape (1, 3), got an array of shape (2, 1, 3) and dtype "
        f"float32. {FORMS}",
    ),
    (
        "gat_attention",
        lambda: gat_attention(graph(), f32(2, 1, 3), f32(2, 2, 3), f32(2, 1, 3)),
        ValueError,
        "h_r must be an array of h_s's shape (2, 1, 3) behind the first axis, got shape "
        "(2, 2, 3). Both ends have the same batch, heads and features.",
    ),
    (
        "gat_attention",
        lambda: gat_attention(graph(), *nodes(), slope=None),
        TypeError,
        "slope must be a number, got None. Pass slope as a Python number.",
    ),
]


def with_field(name, value):
    """A graph with one of its fields replaced."""
    given = graph()
    fields = {k: getattr(given, k) for k in ("senders", "receivers", "sender_of", "receiver_of")}
    return Graph._of(*{**fields, name: value}.values())


@pytest.mark.parametrize(
    ("op", "call", "kind", "text"), TABLE, ids=[f"{row[0]}-{k}" for k, row in enumerate(TABLE)]
)
def test_refusal(op, call, kind, text):
    with pytest.raises(kind) as refused:
        call()
    assert type(refused.value) is kind
    assert str(refused.value) == f"jax_index.{op}: {text}"


def test_refusals_come_at_trace_time():
    for call in (
        lambda: smax(f32(2), IDS),
        lambda: spmm(graph(), f32(3)),
        lambda: sddmm(graph(), f32(2, 3), f32(2, 4)),
        lambda: graph_attention(graph(), *nodes(), weights=f32(4)),
    ):
        with pytest.raises(ValueError, match=r"^jax_index\."):
            jax.eval_shape(call)
        with pytest.raises(ValueError, match=r"^jax_index\."):
            jax.jit(call).lower()


@pytest.mark.parametrize("value", ["abc", object, [[1], [2, 3]]])
def test_refusal_of_what_is_no_array(value):
    for op, argument, call in (
        ("segment_std", "data", lambda: jax_index.segment_std(value, IDS)),
        ("spmm", "x", lambda: spmm(graph(), value)),
        ("spmm", "weights", lambda: spmm(graph(), f32(2), value)),
        ("sddmm", "y", lambda: sddmm(graph(), f32(2, 3), value)),
        ("edge_softmax", "scores", lambda: edge_softmax(graph(), value)),
        ("gat_attention", "att", lambda: gat_attention(graph(), *nodes()[:2], value)),
        ("graph_attention", "bias", lambda: graph_attention(graph(), *nodes(), bias=value)),
    ):
        with pytest.raises(TypeError) as refused:
            call()
        assert str(refused.value).startswith(f"jax_index.{op}: {argument} must be an array, got ")


def test_maps_have_a_limit_that_is_an_error():
    call = spmm
    for level in range(26):
        call = jax.vmap(call, (None, 0) if level % 2 else (0, None))
    deep = jax.tree.map(lambda leaf: leaf.reshape((1,) * 13 + leaf.shape), graph())
    with pytest.raises(ValueError, match=r"^jax_index\.spmm: data must be a batch of arrays of at"):
        jax.eval_shape(call, deep, f32(*(1,) * 13, 2))
