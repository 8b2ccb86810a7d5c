# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Attention: every bit of value and gradient against the written order, and what is not finite."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_index import Graph, edge_softmax, gat_attention, graph_attention, segment_softmax
from jax_index.ops import pointwise

from . import cases, oracle
from . import oracle_graph as graph_oracle
from .test_matmul import GRAPHS, joined, make_graph

B, H = 2, 3


def exp_below(s, m):
    """exp(s - m) by our own kernel, whose values test_segments.py bounds."""
    s, m = np.broadcast_arrays(s, m)
    flat = [jnp.asarray(np.ascontiguousarray(v)).reshape(-1) for v in (s, m)]
    return np.asarray(pointwise.apply("exp_below", flat)).reshape(s.shape)


def options_of(rng, kind, m, dtype, b=B, h=H):
    """Keyword arguments of a call; arrays may lack axes, or have them with size 1."""
    wide = "float64" if dtype == "float64" else "float32"
    draw = lambda *shape: rng.uniform(0.5, 1.5, shape).astype(wide)
    dropout = lambda *shape: (rng.random(shape) < 0.8) * draw(*shape) * np.array(1.25, wide)
    return {
        "plain": {},
        "all": {
            "score_weights": draw(m),
            "bias": draw(m, b),
            "weights": dropout(m, b, h),
            "clip": (-0.5, 1.75),
            "normalize": "sum",
            "denominator_offset": 1.0,
        },
        "size 1": {
            "score_weights": draw(m, 1, h),
            "bias": draw(m, b, 1),
            "weights": dropout(m, 1, 1),
            "clip": (-0.75, 1.25),
            "denominator_offset": 0.7,
        },
        "full": {"score_weights": draw(m, b, h), "bias": draw(m, b, h), "weights": draw(m)},
        "sum": {"normalize": "sum"},
    }[kind]


ARRAYS = ("score_weights", "bias", "weights")


def run(op, graph, nodes, options, ct):
    """The value, and the cotangents of nodes and of per-edge arrays, of one jitted program."""
    fixed = {k: v for k, v in options.items() if k not in ARRAYS}
    edges = {k: jnp.asarray(v) for k, v in options.items() if k in ARRAYS}

    @jax.jit
    def both(graph, nodes, edges, ct):
        call = lambda nodes, edges: op(graph, *nodes, **edges, **fixed)
        out, back = jax.vjp(call, nodes, edges)
        return out, *back(ct)

    return both(graph, [jnp.asarray(v) for v in nodes], edges, jnp.asarray(ct))


SIZES = [(2, 1, 1, 1), (2, 3, 3, 33), (1, 8, 33, 3), (2, 1, 128, 32), (1, 2, 32, 128)]
TABLE = [("float32", name, "plain", (B, H, 5, 4)) for name in GRAPHS]
TABLE += [("float32", "random", kind, (B, H, 5, 4)) for kind in ("all", "size 1", "full", "sum")]
TABLE += [("float32", "hubs", kind, (B, H, 5, 4)) for kind in ("all", "size 1")]
TABLE += [("float32", "square, in order", "all", size) for size in SIZES]
TABLE += [
    (d, "random", kind, (B, H, 5, 4)) for d in ("float16", "bfloat16") for kind in ("plain", "all")
]
TABLE += [("float64", "square, in order", "size 1", (B, H, 5, 4))]


@pytest.mark.parametrize(("dtype", "name", "kind", "size"), TABLE)
def test_graph_attention_and_its_gradients(device, rng, dtype, name, kind, size):
    graph, (*ends, num_senders, num_receivers) = make_graph(name)
    ends = joined(*ends, num_senders, num_receivers)
    b, h, depth, wide = size
    with oracle.x64_for(dtype):
        draw = lambda *shape: rng.standard_normal(shape).astype(dtype)
        q, k = draw(num_receivers, b, h, depth), draw(num_senders, b, h, depth)
        v, ct = draw(num_senders, b, h, wide), draw(num_receivers, b, h, wide)
        options = options_of(rng, kind, ends[0].size, dtype, b, h)
        with jax.numpy_dtype_promotion("standard"):
            out, of_nodes, of_edges = run(graph_attention, graph, (q, k, v), options, ct)
        raw = graph_oracle.sddmm_wide(*ends, k, q)
        options = {"scale": 1 / np.sqrt(depth), **options}
        expected = graph_oracle.Attention(*ends, num_receivers, raw, v, exp_below, **options)
        oracle.assert_same(out, expected.out, "value")
        wanted = expected.gradients(ct)
        t = wanted["raw"]
        oracle.assert_same(of_nodes[0], graph_oracle.spmm(*ends, num_receivers, k, t), "q")
        oracle.assert_same(of_nodes[1], graph_oracle.spmm(*ends[::-1], num_senders, q, t), "k")
        oracle.assert_same(of_nodes[2], wanted["v"], "v")
        for argument, value in of_edges.items():
            oracle.assert_same(value, wanted[argument], argument)


def outer(ct, att, dtype):
    return oracle.narrow(ct[..., None] * oracle.widen(att), dtype)


def one_row(values, weights=None):
    """All rows as the edges of one, in order."""
    zeros = np.zeros(values.shape[0], int)
    step = (
        None if weights is None else lambda total, e: graph_oracle.fma(weights[e], values[e], total)
    )
    return graph_oracle.row_sums(values, zeros, 1, step)[0]


def leaky(z, slope, value=None):
    value = z if value is None else value
    return np.where(z >= 0, value, value * z.dtype.type(slope))


GAT = [("float32", "random", kind) for kind in ("plain", "all", "size 1")]
GAT += [("float32", "hubs", "plain"), ("float32", "no edges", "plain")]
GAT += [("bfloat16", "random", "all"), ("float64", "square, in order", "plain")]


@pytest.mark.parametrize(("dtype", "name", "kind"), GAT)
def test_gat_and_its_gradients(device, rng, dtype, name, kind):
    graph, (*ends, num_senders, num_receivers) = make_graph(name)
    ends = joined(*ends, num_senders, num_receivers)
    depth, slope = 5, 0.3
    with oracle.x64_for(dtype):
        draw = lambda *shape: rng.standard_normal(shape).astype(dtype)
        h_s, h_r = draw(num_senders, B, H, depth), draw(num_receivers, B, H, depth)
        att, ct = draw(2, H, depth), draw(num_receivers, B, H, depth)
        options = options_of(rng, kind, ends[0].size, dtype)
        call = lambda *given, **options: gat_attention(*given, slope=slope, **options)
        with jax.numpy_dtype_promotion("standard"):
            out, of_nodes, of_edges = run(call, graph, (h_s, h_r, att), options, ct)
        wide = [oracle.widen(x) for x in (h_s, h_r, att)]
        kind_of = wide[0].dtype
        parts = [
            graph_oracle.dot([x, np.broadcast_to(a, x.shape)], graph_oracle.fma, kind_of)
            for x, a in zip(wide, wide[2], strict=False)
        ]
        z = graph_oracle.take(parts[0], ends[0]) + graph_oracle.take(parts[1], ends[1])
        raw = leaky(z, slope)
        expected = graph_oracle.Attention(*ends, num_receivers, raw, h_s, exp_below, **options)
        oracle.assert_same(out, expected.out, "value")
        wanted = expected.gradients(ct)
        of_z = leaky(z, slope, wanted["raw"])
        sums = [
            graph_oracle.row_sums(of_z, i, n)
            for i, n in zip(ends, (num_senders, num_receivers), strict=True)
        ]
        from_score = outer(sums[0], att[0], dtype)
        added = oracle.narrow(oracle.widen(from_score) + oracle.widen(wanted["v"]), dtype)
        oracle.assert_same(of_nodes[0], added, "h_s")
        of_r = outer(sums[1], att[1], dtype)
        of_r[np.setdiff1d(np.arange(num_receivers), ends[1])] = 0  # no edge: +0
        oracle.assert_same(of_nodes[1], of_r, "h_r")
        of_att = [
            one_row(x.reshape(-1, H, depth), ct.reshape(-1, H, 1))
            for x, ct in zip(wide, sums, strict=False)
        ]
        oracle.assert_same(of_nodes[2], oracle.narrow(np.stack(of_att), dtype), "att")
        for argument, value in of_edges.items():
            oracle.assert_same(value, wanted[argument], argument)


@pytest.mark.parametrize(("dtype", "name", "kind"), GAT)
def test_gat2_and_its_gradients(device, rng, dtype, name, kind):
    graph, (*ends, num_senders, num_receivers) = make_graph(name)
    ends = joined(*ends, num_senders, num_receivers)
    depth, slope = 37 if dtype != "float64" else 3, 0.3
    with oracle.x64_for(dtype):
        draw = lambda *shape: rng.standard_normal(shape).astype(dtype)
        h_s, h_r = draw(num_senders, B, H, depth), draw(num_receivers, B, H, depth)
        att, ct = draw(H, depth), draw(num_receivers, B, H, depth)
        options = options_of(rng, kind, ends[0].size, dtype)
        call = lambda *given, **options: gat_attention(*given, slope=slope, version=2, **options)
        with jax.numpy_dtype_promotion("standard"):
            out, of_nodes, of_edges = run(call, graph, (h_s, h_r, att), options, ct)
        step = lambda x, y, a, total: graph_oracle.fma(a, leaky(x + y, slope), total)
        raw = graph_oracle.sddmm_wide(*ends, h_s, h_r, step=step, extra=[att])
        expected = graph_oracle.Attention(*ends, num_receivers, raw, h_s, exp_below, **options)
        oracle.assert_same(out, expected.out, "value")
        wanted = expected.gradients(ct)
        t, wide = wanted["raw"][..., None], [oracle.widen(x) for x in (h_s, h_r, att)]

        def sums(mine, other, ends, values):
            """For each row Σ fma(t, leaky(z) or its slope, sum) with z = x[other end] + own."""
            z = graph_oracle.take(other, ends[0]) + graph_oracle.take(mine, ends[1])
            what = leaky(z, slope, None if values else np.ones_like(z))
            add = lambda total, e: graph_oracle.fma(t[e], what[e], total)
            return graph_oracle.row_sums(z, ends[1], mine.shape[0], add)

        of_s = oracle.narrow(sums(wide[0], wide[1], ends[::-1], False) * wide[2], dtype)
        added = oracle.narrow(oracle.widen(of_s) + oracle.widen(wanted["v"]), dtype)
        oracle.assert_same(of_nodes[0], added, "h_s")
        of_r = oracle.narrow(sums(wide[1], wide[0], ends, False) * wide[2], dtype)
        oracle.assert_same(of_nodes[1], of_r, "h_r")
        of_att = one_row(sums(wide[1], wide[0], ends, True).reshape(-1, H, depth))
        oracle.assert_same(of_nodes[2], oracle.narrow(of_att, dtype), "att")
        for argument, value in of_edges.items():
            oracle.assert_same(value, wanted[argument], argument)


def test_edge_softmax_is_the_softmax_of_receivers(device, rng):
    for name in ("random", "hubs", "all dropped", "no edges"):
        graph, (*ends, num_senders, num_receivers) = make_graph(name)
        _, receivers = joined(*ends, num_senders, num_receivers)
        scores = jnp.asarray(rng.standard_normal((receivers.size, H)), jnp.float32)
        out = edge_softmax(graph, scores)
        oracle.assert_same(out, np.asarray(segment_softmax(scores, receivers, num_receivers)))
        ints = edge_softmax(graph, jnp.asarray(scores, jnp.int32))
        assert ints.dtype == jnp.float32


@pytest.mark.parametrize("dtype", [cases.FLOAT8[3], *cases.FLOAT4])
def test_narrow_floats_are_computed_in_float32_and_rounded_once(device, rng, dtype):
    graph, (_, _, num_senders, num_receivers) = make_graph("random")
    q = rng.standard_normal((num_receivers, H, 5)).astype(dtype)
    k, v = (rng.standard_normal((num_senders, H, 5)).astype(dtype) for _ in range(2))
    narrow, wide = ([jnp.asarray(x.astype(d)) for x in (q, k, v)] for d in (dtype, "float32"))
    expected = np.asarray(graph_attention(graph, *wide)).astype(dtype)
    oracle.assert_same(graph_attention(graph, *narrow), expected)
    att = rng.standard_normal((H, 5)).astype(dtype)
    narrow, wide = ([jnp.asarray(x.astype(d)) for x in (k, q, att)] for d in (dtype, "float32"))
    expected = np.asarray(gat_attention(graph, *wide, version=2)).astype(dtype)
    oracle.assert_same(gat_attention(graph, *narrow, version=2), expected)


# --- Rules ----------------------------------------------------------------------------------------


def small(rng, dtype=np.float32):
    """A graph of three receivers, the second without an edge, and its node arrays."""
    graph = Graph([0, 1, 2, 1], [0, 0, 2, 2], num_senders=3, num_receivers=3)
    return graph, [jnp.asarray(rng.standard_normal((3, 2, 4)).astype(dtype)) for _ in range(3)]


@pytest.mark.parametrize(
    "options", [{}, {"denominator_offset": 0.5}, {"normalize": "sum"}], ids=str
)
def test_receivers_with_nothing_to_weigh_give_zero(device, rng, options):
    with oracle.x64():
        graph, nodes = small(rng, np.float64)
        bias = np.zeros((4, 2))
        bias[:2] = -np.inf
        bias[2, 0] = -np.inf

        def loss(nodes, bias, power):
            return (graph_attention(graph, *nodes, bias=bias, **options) ** power).sum()

        out = graph_attention(graph, *nodes, bias=jnp.asarray(bias), **options)
        assert (out[:2] == 0).all()
        assert np.isfinite(out).all()
        slope = jax.grad(loss, (0, 1))
        first = slope(nodes, jnp.asarray(bias), 2)
        again = jax.grad(
            lambda *a: sum((g**2).sum() for g in jax.tree.leaves(slope(*a, 2))), (0, 1)
        )
        for grads in (first, again(nodes, jnp.asarray(bias))):
            assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
            assert (np.asarray(grads[1])[:2] == 0).all()
        if not options:
            # One edge of two is left for the first head: its value alone.
            np.testing.assert_allclose(out[2, 0], nodes[2][1, 0], rtol=1e-12)


def test_large_scores_do_not_overflow(device, rng):
    graph, (q, k, v) = small(rng)
    out = graph_attention(graph, 1000 * q, 1000 * k, v)
    assert np.isfinite(out).all()
    assert np.isfinite(
        jax.grad(lambda q: graph_attention(graph, q, 1000 * k, v).sum())(1000 * q)
    ).all()
    with_sum = graph_attention(graph, q, k, v, bias=jnp.full(4, 200.0), normalize="sum")
    assert np.isnan(with_sum).any()


def test_scale_and_slope_are_the_documented_ones(device, rng):
    graph, (q, k, v) = small(rng)
    oracle.assert_same(graph_attention(graph, q, k, v, scale=0.5), graph_attention(graph, q, k, v))
    att = jnp.stack([q[0], k[0]])
    default = gat_attention(graph, k, q, att)
    oracle.assert_same(gat_attention(graph, k, q, att, slope=0.2, version=1, scale=1), default)
    other = gat_attention(graph, k, q, att, slope=1.0)
    assert (np.asarray(other) != np.asarray(default)).any()
    ones = jnp.ones((4, 2))
    every = {"score_weights": ones, "bias": 0 * ones, "weights": ones, "clip": (-1e9, 1e9)}
    oracle.assert_same(gat_attention(graph, k, q, att, **every), default)


def test_a_clipped_score_has_no_gradient_and_a_bound_has(device):
    graph = Graph([0, 0, 0], [0, 0, 0], num_senders=1, num_receivers=1)
    one = jnp.ones((1, 1, 1))
    loss = lambda b: graph_attention(
        graph, 0 * one, one, one, bias=b, clip=(-1, 1), normalize="sum", denominator_offset=1.0
    ).sum()
    slope = jax.grad(loss)(jnp.asarray([1.5, 1.0, -1.25]))
    assert [v == 0 for v in slope.tolist()] == [True, False, True]
