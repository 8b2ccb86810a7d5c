# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""What users of other libraries reported of segment reductions and of attention; see
test_reported.py.
"""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import jax_index
from jax_index import (
    Graph,
    edge_softmax,
    gather,
    graph_attention,
    make_plan,
    sddmm,
    segment_logsumexp,
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_softmax,
    segment_std,
    segment_sum,
    segment_var,
    spmm,
)

from . import oracle
from .test_reported import both

CASES = {}
REDUCTIONS = (
    segment_sum,
    segment_mean,
    segment_max,
    segment_min,
    segment_prod,
    segment_var,
    segment_std,
    segment_softmax,
    segment_logsumexp,
)


def case(name):
    def keep(fn):
        CASES[name] = fn
        return fn

    return keep


@case("oob-grad-adjoint")
def oob_grad_adjoint(device, rng):
    for op in (segment_sum, segment_mean, segment_var):
        total = lambda v, op=op: op(v, [2, 3], num_segments=2).sum()
        value, slope = both(jax.value_and_grad(total), jnp.zeros(2))
        assert value == 0
        assert slope.tolist() == [0, 0]
        with pytest.raises(IndexError, match=r"got segment_ids\[0\] = 2\."):
            op(jnp.zeros(2), [2, 3], num_segments=2, mode="raise")


@case("negative-id-padding")
def negative_id_padding(device, rng):
    ids, data = [0, 1, 2, 3, 4, -1, -1, -1, -1, -1], jnp.ones(10)
    for op, empty in (
        (segment_sum, 0),
        (segment_max, -np.inf),
        (segment_mean, 0),
        (segment_prod, 1),
    ):
        for fn in (lambda v, op=op: op(v, ids, 10), lambda v, op=op: op(v, jnp.array(ids), 10)):
            assert both(fn, data).tolist() == [1] * 5 + [empty] * 5
    padded = jnp.concatenate([data[:5], jnp.full(5, jnp.nan)])
    out = both(lambda v: gather(segment_softmax(v, ids, 10), [0, 4]), padded)
    assert out.tolist() == [1, 1]


@case("nan-in-dropped-row")
def nan_in_dropped_row(device, rng):
    plan = make_plan([0, 1, -1], 2, mode="drop")
    for poison in (jnp.nan, jnp.inf):
        data = jnp.array([1.0, 2.0, poison])
        _, back = jax.vjp(lambda v: segment_sum(v, plan), data)
        assert back(jnp.array([1.0, 0.0]))[0].tolist() == [1, 0, 0]
        # A weighted sum: the dropped weight is never multiplied.
        graph = Graph([0, 1, 2], [0, 1, -1], num_senders=3, num_receivers=2, mode="drop")
        w = jnp.array([1.0, 1.0, poison])
        slope = both(jax.grad(lambda x, w=w, g=graph: spmm(g, x, w)[0]), jnp.array([1.0, 2.0, 3.0]))
        assert slope.tolist() == [1, 0, 0]


@case("narrow-index-scatter-one-update")
def narrow_index_scatter_one_update(device, rng):
    for dtype, count, at in (("uint8", 300, 200), ("int8", 300, 100), ("int16", 70_000, 30_000)):
        ids = np.array([at], dtype)
        expected = np.eye(1, count, at, dtype=np.int32)[0] * 1000
        for given in (ids, jnp.asarray(ids)):
            oracle.assert_same(segment_sum(jnp.array([1000]), given, count), expected)
        traced = jax.jit(lambda i, count=count: segment_sum(jnp.array([1000]), i, count))
        oracle.assert_same(traced(ids), expected)


@case("int64-host-id-truncation")
def int64_host_id_truncation(device, rng):
    ids = np.array([2**32, 1], np.int64)
    assert segment_sum(jnp.ones(2), ids, 4).tolist() == [0, 1, 0, 0]
    with pytest.raises(IndexError, match=r"got segment_ids\[0\] = 4294967296\."):
        segment_sum(jnp.ones(2), ids, 4, mode="raise")
    with pytest.raises(
        ValueError, match="num_segments must be a whole number from 0 to 2147483647"
    ):
        segment_sum(jnp.ones(2), ids)


@case("f32-one-hot-bin-saturation")
def f32_one_hot_bin_saturation(device, rng):
    plan = jax_index.make_plan_from_indptr([0, 2**25])
    ones = jnp.ones(2**25, jnp.float32)
    assert segment_sum(ones, plan).tolist() == [33_554_432]
    assert segment_mean(ones, plan).tolist() == [1]
    assert segment_softmax(ones, plan)[:2].tolist() == [2.0**-25] * 2


@case("half-accumulator-saturation")
def half_accumulator_saturation(device, rng):
    zero = lambda count: np.zeros(count, int)
    for dtype, count in (("bfloat16", 512), ("float16", 4096)):
        ones = jnp.ones(count, dtype)
        graph = Graph(zero(count), zero(count), num_senders=1, num_receivers=1)
        assert segment_sum(ones, zero(count)).tolist() == [count]
        assert segment_mean(ones, zero(count)).tolist() == [1]
        assert segment_softmax(ones, zero(count))[0] == 1 / count
        assert spmm(graph, jnp.ones((1, 1), dtype), ones).tolist() == [[count]]
        assert sddmm(graph, *[jnp.ones((1, count), dtype)] * 2)[0] == count
        # As many equal scores: every one has the same share of the value.
        one = jnp.ones((1, 1, 1), dtype)
        assert graph_attention(graph, one, one, one).tolist() == [[[1]]]


@case("inf-nan-stay-in-their-segment")
def inf_nan_stay_in_their_segment(device, rng):
    ids = [0, 0, 1, 1, 2]
    for poison in (jnp.inf, jnp.nan):
        data = jnp.array([1.0, 2.0, poison, 4.0, 5.0])
        for op, first in ((segment_sum, 3), (segment_mean, 1.5), (segment_max, 2)):
            out = both(lambda v, op=op: op(v, ids, num_segments=3), data)
            np.testing.assert_array_equal(out, [first, poison, 5])
        for op in REDUCTIONS:
            kept = np.array([0, 1, 4]) if op is segment_softmax else np.array([0, 2])
            slope = jax.jit(jax.grad(lambda v, op=op, at=kept: op(v, ids, 3)[at].sum()))(data)
            assert np.isfinite(np.asarray(slope)[[0, 1, 4]]).all()


@case("empty-segments-everywhere")
def empty_segments_everywhere(device, rng):
    data, ids = jnp.arange(1.0, 6.0), [1, 1, 3, 3, 3]
    assert both(lambda v: segment_sum(v, ids, 6), data).tolist() == [0, 3, 0, 12, 0, 0]
    assert both(lambda v: segment_mean(v, ids, 6), data).tolist() == [0, 1.5, 0, 4, 0, 0]
    assert segment_sum(jnp.ones(5, int), ids, 6).tolist() == [0, 2, 0, 3, 0, 0]
    slope = both(jax.grad(lambda v: (segment_sum(v, ids, 6) ** 2).sum()), data)
    assert slope.tolist() == [6, 6, 24, 24, 24]
    shares = segment_sum(segment_softmax(data, ids, 6), ids, 6)
    np.testing.assert_allclose(shares, [0, 1, 0, 1, 0, 0], rtol=1e-6)


@case("empty-segment-extremum")
def empty_segment_extremum(device, rng):
    limits = {
        "float32": (-np.inf, np.inf),
        "int32": (-(2**31), 2**31 - 1),
        "uint8": (0, 255),
        "int4": (-8, 7),
        "float8_e4m3fn": (-448, 448),
        "bool": (False, True),
    }
    for dtype, (least, most) in limits.items():
        x = jnp.asarray([1, 1]).astype(dtype)
        for op, none in ((segment_max, least), (segment_min, most)):
            out = np.asarray(both(lambda v, op=op: op(v, [0, 2], 4), x)).astype(object)
            assert [float(v) for v in out] == [1, float(none), 1, float(none)]
    finite = lambda v: segment_max(v, [0, 2], 4)[np.array([0, 2])].sum()
    assert both(jax.grad(finite), jnp.array([1.0, 2.0])).tolist() == [1, 1]


@case("zero-sizes")
def zero_sizes(device, rng):
    for m, n, width in ((0, 3, 2), (3, 0, 2), (3, 3, 0), (0, 0, 2)):
        check_zero_size(m, n, width)
    with pytest.raises(IndexError):
        segment_max(jnp.ones(1), [0], 0, mode="raise")


def check_zero_size(m, n, width):
    """Every op and every gradient, jitted, and a batch of one."""
    ids = np.full(m, -1) if n == 0 else np.arange(m) % n
    plan = make_plan(ids, n, mode="drop")
    graph = Graph(ids, ids, num_senders=n, num_receivers=n, mode="drop")
    x, y, w = jnp.ones((n, 2, width)), jnp.ones((m, 2, width)), jnp.ones((m, 2))

    def everything(x, y, w):
        return (
            *(op(y, plan) for op in REDUCTIONS),
            spmm(graph, x, w),
            sddmm(graph, x, x),
            edge_softmax(graph, w),
            graph_attention(graph, x, x, x, weights=w, bias=w),
            jax_index.gat_attention(graph, x, x, jnp.ones((2, 2, width))),
            jax_index.gat_attention(graph, x, x, jnp.ones((2, width)), version=2),
        )

    def slopes(x, y, w):
        out, back = jax.vjp(everything, x, y, w)
        return out, back(out)

    out, back = jax.jit(slopes)(x, y, w)
    rows, edges = (n, 2, width), (m, 2, width)
    shapes = [rows] * 7 + [edges, rows, rows, (m, 2), (m, 2), rows, rows, rows]
    assert [v.shape for v in out] == shapes
    assert [v.shape for v in back] == [rows, edges, (m, 2)]
    assert all(np.isfinite(v).all() for v in (*out[:2], *out[4:8], *back))
    batched = jax.jit(jax.vmap(everything, (None, 0, None)))(x, jnp.ones((2, *edges)), w)
    assert [v.shape for v in batched] == [(2, *s) for s in shapes]
    if m == 0:
        assert np.isneginf(out[2]).all()
        assert not np.asarray(out[9]).any()


@case("max-ties-gradient")
def max_ties_gradient(device, rng):
    slope = both(jax.grad(lambda v: segment_max(v, [0, 0, 0], 1).sum()), jnp.array([3.0, 3.0, 1.0]))
    assert slope.tolist() == [0.5, 0.5, 0]
    ties = np.repeat(rng.integers(0, 3, 4000), 2).astype(np.float32)
    ids = rng.integers(0, 7, 8000)
    total = jax.grad(lambda v: segment_max(v, ids, 7).sum())(jnp.asarray(ties))
    np.testing.assert_allclose(segment_sum(total, ids, 7), np.ones(7), rtol=1e-5)


@case("extremum-with-clipped-ids")
def extremum_with_clipped_ids(device, rng):
    x, ids = jnp.array([1.0, 3.0, 4.0]), np.array([-3, 8])
    update = lambda t: t * jnp.array([1.0, -1.0]) + jnp.array([1.0, 4.0])
    with pytest.raises(ValueError, match="Clip the ids first"):
        segment_max(update(0.03125), ids, 3, mode="clip")

    def loss(t):
        y = jnp.maximum(x, segment_max(update(t), np.clip(ids, 0, 2), 3))
        return 2 * y[0] - y[1] + 3 * y[2]

    assert both(jax.grad(loss), 0.03125) == 2


@case("flags-that-lie")
def flags_that_lie(device, rng):
    data = jnp.array([1.0, 2.0, 4.0])
    assert segment_sum(data, [1, 0, 1], 2, indices_are_sorted=True).tolist() == [2, 5]
    assert segment_max(data, [1, 0, 1], 2, indices_are_sorted=True).tolist() == [2, 4]
    assert segment_sum(data, [1, 1, 0], 2, unique_indices=True).tolist() == [4, 3]
    traced = jax.jit(lambda v, i: segment_sum(v, i, 2, True, True))
    assert traced(data, jnp.array([1, 0, 1])).tolist() == [2, 5]


@case("transposed-and-strided-input")
def transposed_and_strided_input(device, rng):
    x, ids = jnp.arange(6.0).reshape(2, 3), [0, 0, 1]
    assert both(lambda v: segment_sum(v.T, ids, 2), x).tolist() == [[1, 7], [2, 5]]
    assert both(lambda v: segment_max(v.T, ids, 2), x).tolist() == [[1, 4], [2, 5]]
    graph = Graph([0, 2], [1, 0], num_senders=3, num_receivers=2)
    assert both(lambda v: spmm(graph, v.T), x).tolist() == [[2, 5], [0, 3]]
    assert both(lambda v: sddmm(graph, v.T, v[:, :2]), x).tolist() == [12, 5]


@case("two-dim-ids")
def two_dim_ids(device, rng):
    for op in REDUCTIONS:
        with pytest.raises(ValueError, match=r"segment_ids must be one-dimensional, got shape"):
            op(jnp.ones((2, 2)), [[0, 1], [1, 0]], num_segments=2)


@case("masked-segment-softmax")
def masked_segment_softmax(device, rng):
    for logits in ([0.0, 1.0, 1000.0], [0.0, 1.0, jnp.inf], [0.0, 1.0, jnp.nan]):
        out, back = jax.vjp(lambda v: segment_softmax(v, [0, 0, -1], 2), jnp.array(logits))
        np.testing.assert_allclose(out, [0.26894143, 0.7310586, 0], rtol=1e-6)
        ct = back(jnp.array([1.0, 0.0, 5.0]))[0]
        np.testing.assert_allclose(ct, [0.19661194, -0.19661194, 0], rtol=1e-6)
    # Every entry masked; and a segment of nothing but -inf beside one with a single finite entry.
    out, back = jax.vjp(lambda v: segment_softmax(v, [-1, -1], 1), jnp.array([1.0, jnp.nan]))
    assert (out.tolist(), back(jnp.ones(2))[0].tolist()) == ([0, 0], [0, 0])
    logits = jnp.array([-jnp.inf, -jnp.inf, -jnp.inf, 2.0])
    out, back = jax.vjp(lambda v: segment_softmax(v, [0, 0, 1, 1], 2), logits)
    assert out.tolist() == [0, 0, 0, 1]
    assert back(jnp.arange(4.0))[0].tolist() == [0, 0, 0, 0]


@case("bitwise-repeat")
def bitwise_repeat(device, rng):
    for n, width in ((10, 3), (1000, 1)):
        ids = rng.integers(0, n, 30_000)
        graph = Graph(rng.integers(0, n, 30_000), ids, num_senders=n, num_receivers=n)
        y = jnp.asarray(np.round(4 * rng.standard_normal((30_000, width))).astype(np.float32))
        check_repeated(graph, y, jnp.asarray(rng.standard_normal((n, 1, width)), jnp.float32))


def check_repeated(graph, y, x):
    def run(y, x, graph):
        out, back = jax.vjp(lambda v: segment_max(v, graph.receivers), y)
        mixed, again = jax.vjp(lambda v: graph_attention(graph, v, v, v), x)
        return out, back(out), mixed, again(mixed)

    bits = lambda found: [np.asarray(v).tobytes() for v in jax.tree.leaves(found)]
    jitted = jax.jit(run)
    first = bits(jitted(y, x, graph))
    for _ in range(5):
        assert bits(jitted(y, x, graph)) == first
    assert bits(run(y, x, graph)) == first
    stepped = jax.lax.map(lambda _: run(y, x, graph)[:2], jnp.arange(3))
    for k in range(3):
        assert bits(jax.tree.map(lambda v, k=k: v[k], stepped)) == first[:2]


@case("subnormals-and-ftz")
def subnormals_and_ftz(device, rng):
    tiny = jnp.asarray(np.full(4, 1e-40, np.float32))
    oracle.assert_same(both(lambda v: segment_sum(v, [0] * 4), tiny), np.asarray(tiny[:1]) * 4)
    for op in (segment_mean, segment_max, segment_min):
        oracle.assert_same(both(lambda v, op=op: op(v, [0] * 4), tiny), np.asarray(tiny[:1]))
    graph = Graph([0, 1], [0, 0], num_senders=2, num_receivers=1)
    pair = tiny[:2, None]
    halves = jnp.array([0.5, 0.5])
    oracle.assert_same(both(lambda v: spmm(graph, v, halves), pair), np.asarray(tiny[:1, None]))
    slope = both(jax.grad(lambda v: spmm(graph, v, halves * 1e-37)[0, 0]), pair)
    assert (np.asarray(slope) > 0).all()


@case("no-edge-sized-intermediate")
def no_edge_sized_intermediate(device, rng):
    n, m, width = 2000, 60_000, 32
    src, dst = rng.integers(0, n, m), rng.integers(0, n, m)
    h, w = rng.integers(-3, 4, (n, width)), rng.integers(-3, 4, m)
    h, w = h.astype(np.float32), w.astype(np.float32)
    graph = Graph(src, dst, num_senders=n, num_receivers=n)
    expected = scipy.sparse.csr_array((w, (dst, src)), shape=(n, n)) @ h
    assert (np.asarray(spmm(graph, jnp.asarray(h), jnp.asarray(w))) == expected).all()
    slope = jax.jit(jax.grad(lambda g, h, w: spmm(g, h, w).sum(), argnums=(1, 2)))
    compiled = slope.lower(graph, jnp.asarray(h), jnp.asarray(w)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < m * width


@case("hessian-exact")
def hessian_exact(device, rng):
    v = jnp.array([0.0, 1.0, 2.0])
    energy = lambda v: (segment_sum(v, [0, 0, 1], 2) ** 2).sum()
    expected = [[2, 2, 0], [2, 2, 0], [0, 0, 2]]
    hessian = lambda f: jax.jit(jax.jacrev(jax.jacrev(f)))(v).tolist()
    assert jax.jacrev(jax.jacrev(energy))(v).tolist() == hessian(energy) == expected
    spread = lambda v: (segment_var(v, [0, 0, 1], 2)).sum()
    assert hessian(spread) == [
        [0.5, -0.5, 0],
        [-0.5, 0.5, 0],
        [0, 0, 0],
    ]
    product = lambda v: segment_prod(v, [0, 0, 0], 1).sum()
    assert hessian(product) == [[0, 2, 1], [2, 0, 0], [1, 0, 0]]


@case("jvp-alone-under-jit")
def jvp_alone_under_jit(device, rng):
    senders, receivers = rng.integers(0, 6, 10), rng.integers(0, 6, 10)
    with oracle.x64():
        graph = Graph(senders, receivers, num_senders=6, num_receivers=6)
        S, R = (jnp.asarray(np.eye(6)[ids]) for ids in (senders, receivers))
        h, direction = (jnp.asarray(rng.standard_normal(6)) for _ in range(2))
        energy = lambda h: (
            segment_sum(jnp.sin(sddmm(graph, h[:, None], h[:, None])), receivers, 6) ** 2
        ).sum()
        dense = lambda h: ((R.T @ jnp.sin((S @ h) * (R @ h))) ** 2).sum()
        product = lambda f: jax.grad(lambda v: jnp.vdot(jax.grad(f)(v), direction))
        third = lambda f: jax.grad(lambda v: jnp.vdot(product(f)(v), direction))
        for derivative in (jax.grad, product, third):
            actual, expected = (jax.jit(derivative(f))(h) for f in (energy, dense))
            np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@case("registration-order-platform")
def registration_order_platform(device, rng):
    graph = Graph([0, 1], [1, 0], num_senders=2, num_receivers=2)
    h = jnp.ones((2, 1, 3))
    program = jax.jit(jax.grad(lambda h: graph_attention(graph, h, h, h).sum()))
    lowered = lambda p: program.trace(h).lower(lowering_platforms=(p,)).as_text()
    with warnings.catch_warnings(action="ignore"):  # one a process: another test may have had it
        assert "custom_call" not in lowered("tpu")


@pytest.mark.parametrize("name", CASES)
def test_reported(name, device, rng):
    CASES[name](device, rng)
