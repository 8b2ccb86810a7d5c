# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""spmm and sddmm: every bit against an oracle of the written order, and their derivatives."""

from __future__ import annotations

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given

import jax_index
from jax_index import Graph, sddmm, spmm

from . import cases, oracle
from . import oracle_graph as graph_oracle
from .test_properties import settings

settings.load_profile("here")


def _random(m, num_senders, num_receivers, seed=1):
    rng = np.random.default_rng(seed)
    return rng.integers(-1, num_senders + 1, m), rng.integers(-2, num_receivers, m)


def _hubs(*lengths):
    rng = np.random.default_rng(2)
    receivers = rng.permutation(np.repeat(np.arange(len(lengths)), lengths))
    return rng.integers(0, 50, receivers.size), receivers, 50, len(lengths)


# name: (senders, receivers, num_senders, num_receivers); edges out of range are dropped.
GRAPHS = {
    "random": (*_random(300, 30, 20), 30, 20),
    "square, in order": (np.arange(40) % 7, np.sort(np.arange(40) % 6), 7, 7),
    "hubs": _hubs(129, 0, 1024, 1025, 1, 128, 33),
    "hub of many levels": _hubs(3, 40_000, 0),
    "no edges": (np.zeros(0, int), np.zeros(0, int), 4, 3),
    "no receivers": (np.array([0, 1]), np.array([0, -1]), 2, 0),
    "no senders": (np.array([0, 1]), np.array([0, 1]), 0, 2),
    "all dropped": (np.array([0, -1, 9]), np.array([-1, 1, 0]), 3, 2),
    "one edge": (np.array([2]), np.array([0]), 3, 1),
}
FLOATS = ["float32", "float64", "float16", "bfloat16"]


def make_graph(name):
    senders, receivers, num_senders, num_receivers = given_graph = GRAPHS[name]
    sizes = {"num_senders": num_senders, "num_receivers": num_receivers}
    return Graph(senders, receivers, **sizes, mode="drop"), given_graph


def joined(senders, receivers, num_senders, num_receivers):
    """Both ends, -1 at both where one is dropped."""
    there = (
        (senders >= 0) & (senders < num_senders) & (receivers >= 0) & (receivers < num_receivers)
    )
    return np.where(there, senders, -1), np.where(there, receivers, -1)


WEIGHTS = {"none": None, "edge": (), "edge and head": (2,), "full": (2, 5)}
TABLE = [("float32", name, kind) for name in GRAPHS for kind in ("none", "edge and head")]
TABLE += [("float32", "random", "edge"), ("float32", "random", "full"), ("float32", "hubs", "full")]
TABLE += [(d, "random", kind) for d in FLOATS[1:] for kind in ("none", "edge and head")]
TABLE += [(d, "random", "full") for d in ("bfloat16", "float64")]


@pytest.mark.parametrize(("dtype", "name", "kind"), TABLE)
def test_spmm_and_its_gradients(device, rng, dtype, name, kind):
    """The value, and both gradients as spmm along the turned edges and as dots at their ends."""
    graph, (senders, receivers, num_senders, num_receivers) = make_graph(name)
    senders, receivers = joined(senders, receivers, num_senders, num_receivers)
    shape = (2, 5)
    with oracle.x64_for(dtype):
        x = cases.values(rng, (num_senders, *shape), dtype)
        ct = cases.values(rng, (num_receivers, *shape), dtype)
        w = WEIGHTS[kind]
        w = None if w is None else rng.standard_normal((senders.size, *w)).astype(dtype)
        weights = None if w is None else jnp.asarray(w)

        def run(graph, x, w, ct):
            out, back = jax.vjp(lambda x, w: spmm(graph, x, w), x, w)
            return out, *back(ct)

        out, of_x, of_w = jax.jit(run)(graph, jnp.asarray(x), weights, jnp.asarray(ct))
        oracle.assert_same(out, graph_oracle.spmm(senders, receivers, num_receivers, x, w))
        oracle.assert_same(spmm(graph.generic, jnp.asarray(x), weights), np.asarray(out))
        oracle.assert_same(of_x, graph_oracle.spmm(receivers, senders, num_senders, ct, w))
        if w is not None:
            dots = graph_oracle.sddmm(senders, receivers, x, ct, 3 - w.ndim)
            oracle.assert_same(of_w, dots)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("float32", n) for n in GRAPHS] + [(d, "random") for d in FLOATS[1:]],
)
def test_sddmm_and_its_gradients(device, rng, dtype, name):
    graph, (senders, receivers, num_senders, num_receivers) = make_graph(name)
    senders, receivers = joined(senders, receivers, num_senders, num_receivers)
    shape = (2, 37) if dtype != "float64" else (2, 5)
    with oracle.x64_for(dtype):
        x = cases.values(rng, (num_senders, *shape), dtype)
        y = cases.values(rng, (num_receivers, *shape), dtype)
        ct = cases.values(rng, (senders.size, 2), dtype)

        def run(graph, x, y, ct):
            out, back = jax.vjp(lambda x, y: sddmm(graph, x, y), x, y)
            return out, *back(ct)

        given_args = (jnp.asarray(x), jnp.asarray(y), jnp.asarray(ct))
        out, of_x, of_y = jax.jit(run)(graph, *given_args)
        expected = graph_oracle.sddmm(senders, receivers, x, y)
        oracle.assert_same(out, expected)
        # Exchanging the ends changes no bit.
        oracle.assert_same(sddmm(graph.T, *given_args[1::-1]), expected)
        if dtype == "float64":
            return
        oracle.assert_same(of_x, graph_oracle.spmm(receivers, senders, num_senders, y, ct))
        oracle.assert_same(of_y, graph_oracle.spmm(senders, receivers, num_receivers, x, ct))


@pytest.mark.parametrize(
    ("depth", "heads"),
    [(d, (3,)) for d in (0, 1, 3, 31, 32, 33, 64, 128)]
    + [(33, h) for h in ((), (1,), (8,), (2, 3))],
    ids=str,
)
def test_widths(device, rng, depth, heads):
    graph, (senders, receivers, num_senders, num_receivers) = make_graph("square, in order")
    x = rng.standard_normal((num_senders, *heads, depth)).astype(np.float32)
    y = rng.standard_normal((num_receivers, *heads, depth)).astype(np.float32)
    w = rng.standard_normal((senders.size, *heads)).astype(np.float32)
    given_x, given_w = jnp.asarray(x), jnp.asarray(w)
    ends = senders, receivers
    oracle.assert_same(spmm(graph, given_x, given_w), graph_oracle.spmm(*ends, num_receivers, x, w))
    oracle.assert_same(sddmm(graph, given_x, jnp.asarray(y)), graph_oracle.sddmm(*ends, x, y))


def test_order_decides_the_bits(device, rng):
    """The oracle would prove nothing if every order gave the same bits."""
    _, (senders, receivers, _, num_receivers) = make_graph("hubs")
    x = rng.standard_normal((50, 3)).astype(np.float32)
    first = graph_oracle.spmm(senders, receivers, num_receivers, x)
    other = graph_oracle.spmm(senders[::-1], receivers[::-1], num_receivers, x)
    assert (oracle.bits(first) != oracle.bits(other)).any()
    x = rng.standard_normal((50, 70)).astype(np.float32)
    ends = senders, senders[::-1]
    dots = graph_oracle.sddmm(*ends, x, x)
    assert (oracle.bits(dots) != oracle.bits((x[ends[0]] * x[ends[1]]).sum(-1))).any()


@pytest.mark.parametrize("dtype", cases.INTEGERS)
def test_integers_wrap(device, rng, dtype):
    graph, (senders, receivers, num_senders, num_receivers) = make_graph("random")
    senders, receivers = joined(senders, receivers, num_senders, num_receivers)
    with oracle.x64_for(dtype):
        x = cases.values(rng, (num_senders, 2, 3), dtype)
        y = cases.values(rng, (num_receivers, 2, 3), dtype)
        w = cases.values(rng, (senders.size, 2), dtype)
        # Low bits depend on low bits alone: any wider type gives them.
        wide = [
            v.astype(np.int8).astype(np.int64) if dtype in cases.SUB_BYTE else v for v in (x, y, w)
        ]
        a, b, c = (v.astype(np.uint64 if dtype == "uint64" else np.int64) for v in wide)
        sums = graph_oracle.spmm_wide(senders, receivers, num_receivers, a, c)
        dots = graph_oracle.sddmm_wide(senders, receivers, a, b)
        narrow = oracle.narrow if dtype in cases.SUB_BYTE else lambda v, d: v.astype(d)
        oracle.assert_same(
            spmm(graph, jnp.asarray(x), jnp.asarray(w)), narrow(sums, np.dtype(dtype))
        )
        oracle.assert_same(
            sddmm(graph, jnp.asarray(x), jnp.asarray(y)), narrow(dots, np.dtype(dtype))
        )


@pytest.mark.parametrize("dtype", [*cases.FLOAT8, *cases.FLOAT4])
def test_narrow_floats(device, rng, dtype):
    graph, (senders, receivers, num_senders, num_receivers) = make_graph("random")
    senders, receivers = joined(senders, receivers, num_senders, num_receivers)
    x = cases.values(rng, (num_senders, 2, 3), dtype)
    y = cases.values(rng, (num_receivers, 2, 3), dtype)
    w = cases.values(rng, (senders.size, 2), dtype)
    oracle.assert_same(
        spmm(graph, jnp.asarray(x), jnp.asarray(w)),
        graph_oracle.spmm(senders, receivers, num_receivers, x, w),
    )
    oracle.assert_same(
        sddmm(graph, jnp.asarray(x), jnp.asarray(y)), graph_oracle.sddmm(senders, receivers, x, y)
    )
    assert ml_dtypes.finfo(dtype).bits <= 8


def test_operands_promote(device, rng):
    graph, (senders, receivers, num_senders, num_receivers) = make_graph("random")
    senders, receivers = joined(senders, receivers, num_senders, num_receivers)
    x = rng.integers(-3, 4, (num_senders, 3))
    w = rng.standard_normal(senders.size).astype(np.float32)
    with pytest.raises(ValueError, match="no available implicit dtype promotion path"):
        spmm(graph, jnp.asarray(x, jnp.bfloat16), jnp.asarray(w))
    expected = graph_oracle.spmm(senders, receivers, num_receivers, x.astype(np.float32), w)
    with jax.numpy_dtype_promotion("standard"):
        for given_x in (jnp.asarray(x, jnp.int8), jnp.asarray(x, jnp.bfloat16)):
            out, back = jax.vjp(lambda v, w: spmm(graph, v, w), given_x, jnp.asarray(w))
            oracle.assert_same(out, expected)
            kinds = [ct.dtype for ct in back(out)]
            wanted = jax.dtypes.float0 if given_x.dtype == jnp.int8 else given_x.dtype
            assert kinds == [wanted, np.float32]
        out = sddmm(graph, jnp.asarray(x, jnp.float16), jnp.ones((num_receivers, 3)))
        assert out.dtype == jnp.float32
    weak = jnp.broadcast_to(jnp.asarray(2.0), (num_senders, 2))
    assert weak.weak_type
    assert not spmm(graph, weak).weak_type
    assert not sddmm(graph, weak, jnp.ones((num_receivers, 2))).weak_type


@pytest.mark.parametrize("form", ["csr", "coo"])
def test_spmm_is_the_product_with_a_sparse_matrix(device, rng, form):
    A = scipy.sparse.random_array((20, 30), density=0.2, rng=rng, format=form, dtype=np.float32)
    A.data = np.round(A.data * 8)
    graph, weights = Graph.from_scipy(A)
    x = cases.small_integers(rng, (30, 4), "float32")
    assert (np.asarray(spmm(graph, jnp.asarray(x), weights)) == A @ x).all()
    back = np.asarray(spmm(graph.T, jnp.asarray(A @ x), weights))
    assert (back == A.T @ (A @ x)).all()


# --- Derivatives ----------------------------------------------------------------------------------


def dense_spmm(given_graph, x, w):
    senders, receivers = joined(*given_graph)
    S, R = (
        jnp.asarray(np.eye(k + 1)[ids, :k], x.dtype)
        for ids, k in zip((senders, receivers), given_graph[2:], strict=True)
    )
    y = jnp.einsum("es,s...->e...", S, x)
    y = y if w is None else y * w.reshape(w.shape + (1,) * (y.ndim - w.ndim))
    return jnp.einsum("er,e...->r...", R, y)


def dense_sddmm(given_graph, x, y):
    senders, receivers = joined(*given_graph)
    S, R = (
        jnp.asarray(np.eye(k + 1)[ids, :k], x.dtype)
        for ids, k in zip((senders, receivers), given_graph[2:], strict=True)
    )
    return (jnp.einsum("es,s...->e...", S, x) * jnp.einsum("er,r...->e...", R, y)).sum(-1)


def orders(f, arguments, directions):
    """The value, the gradient and a directional derivative of the gradient, for all arguments."""
    at = tuple(k for k, v in enumerate(arguments) if v is not None)
    loss = lambda *a: (jnp.sin(f(*a)) * jnp.arange(1.0, f(*a).size + 1).reshape(f(*a).shape)).sum()

    def slope(*a):
        grads = jax.grad(loss, at)(*a)
        return sum(jnp.vdot(g, directions[k]) for g, k in zip(grads, at, strict=True))

    both = lambda *a: (f(*a), jax.grad(loss, at)(*a), jax.grad(slope, at)(*a))
    return jax.tree.leaves(jax.jit(both)(*arguments))


def assert_orders(ours, dense, arguments, directions, rtol=1e-9):
    found, expected = (orders(f, arguments, directions) for f in (ours, dense))
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=str(k))


@pytest.mark.parametrize("kind", WEIGHTS)
def test_second_derivatives_of_spmm(device, rng, kind):
    given_graph = (*_random(40, 6, 5), 6, 5)
    graph = Graph(*given_graph[:2], num_senders=6, num_receivers=5, mode="drop")
    with oracle.x64():
        w = WEIGHTS[kind]
        shapes = [(6, 2, 5), None if w is None else (40, *w)]
        draw = lambda: [None if s is None else jnp.asarray(rng.standard_normal(s)) for s in shapes]
        ours = lambda x, w: spmm(graph, x, w)
        assert_orders(ours, lambda x, w: dense_spmm(given_graph, x, w), draw(), draw())


def test_second_derivatives_of_sddmm(device, rng):
    given_graph = (*_random(40, 6, 5), 6, 5)
    graph = Graph(*given_graph[:2], num_senders=6, num_receivers=5, mode="drop")
    with oracle.x64():
        draw = lambda: [jnp.asarray(rng.standard_normal((n, 2, 3))) for n in (6, 5)]
        ours = lambda x, y: sddmm(graph, x, y)
        assert_orders(ours, lambda x, y: dense_sddmm(given_graph, x, y), draw(), draw())


def test_nothing_of_a_dropped_edge_is_read(device, rng):
    """Weights, cotangents and directions there, and rows that only dropped edges name."""
    senders, receivers = np.array([0, 1, 3, 2, -1, 0]), np.array([1, 0, -1, 4, 1, 1])
    dropped = [2, 3, 4]  # alone they name the senders 2 and 3
    graph = Graph(senders, receivers, num_senders=4, num_receivers=3, mode="drop")

    @jax.jit
    def everything(x, w, ct, dx, dw):
        def first(x, w, ct):
            out, back = jax.vjp(lambda x, w: spmm(graph, x, w), x, w)
            return out, *back(ct)

        results, again = jax.vjp(first, x, w, ct)
        dots, of_dots = jax.vjp(lambda x, c: sddmm(graph, x, c), x, ct)
        return results, again((ct, dx, dw)), dots, of_dots(dw)

    found = []
    for poison in (0.0, np.nan, np.inf):
        rng = np.random.default_rng(0)
        x, w, ct, dx, dw = (
            rng.standard_normal(s).astype(np.float32) for s in ((4, 2), 6, (3, 2), (4, 2), 6)
        )
        x[[2, 3]] = dx[[2, 3]] = poison
        w[dropped] = dw[dropped] = poison
        ct[2] = poison  # no edge enters
        found.append(everything(*(jnp.asarray(v) for v in (x, w, ct, dx, dw))))
    (_, _, of_w), again, dots, _ = found[1]
    for value in (of_w, again[1], dots):
        assert (np.asarray(value)[dropped] == 0).all()
    for other in found[1:]:
        for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True):
            oracle.assert_same(b, a)


def test_arrays_without_derivative_have_float0_cotangents(device):
    graph, (_, _, num_senders, num_receivers) = make_graph("square, in order")
    x, y = jnp.ones((num_senders, 2), jnp.int32), jnp.ones((num_receivers, 2), jnp.int32)
    w = jnp.ones(graph.num_edges, jnp.int32)
    for call, operands in (
        (lambda x, w: spmm(graph, x, w), (x, w)),
        (lambda x, y: sddmm(graph, x, y), (x, y)),
    ):
        out, back = jax.vjp(call, *operands)
        zeros = np.zeros(out.shape, jax.dtypes.float0)
        assert [ct.dtype for ct in back(zeros)] == [jax.dtypes.float0] * 2
    loss = lambda g, x: spmm(g, x).sum()
    of_graph, of_x = jax.grad(loss, argnums=(0, 1), allow_int=True)(graph, jnp.ones((7, 2)))
    assert {leaf.dtype for leaf in jax.tree.leaves(of_graph)} == {jax.dtypes.float0}
    assert of_x.sum() == 80


def test_a_graph_may_hold_anything(device, rng):
    graph, (_, _, num_senders, num_receivers) = make_graph("hubs")
    graph = graph.generic
    x = jnp.asarray(rng.standard_normal((num_senders, 2, 3)), jnp.float32)
    y = jnp.asarray(rng.standard_normal((num_receivers, 2, 3)), jnp.float32)
    w = jnp.asarray(rng.standard_normal((graph.num_edges, 2)), jnp.float32)
    for seed in range(3):
        wild = np.random.default_rng(seed)
        draw = lambda leaf, wild=wild: jnp.asarray(
            wild.integers(-(2**31), 2**31, leaf.shape), jnp.int32
        )
        garbage = jax.tree.map(draw, graph)
        assert spmm(garbage, x, w).shape == y.shape
        assert sddmm(garbage, x, y).shape == w.shape
        assert jax.jit(jax.grad(lambda w, g: spmm(g, x, w).sum()))(w, garbage).shape == w.shape


# --- Laws -----------------------------------------------------------------------------------------


@st.composite
def graphs(draw):
    m, num_senders, num_receivers = draw(
        st.sampled_from([(0, 2, 3), (7, 3, 4), (40, 4, 9), (200, 30, 2), (3, 0, 2), (3, 2, 0)])
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    senders = rng.integers(-1, num_senders + 1, m)
    receivers = rng.integers(-1, num_receivers + 1, m)
    if draw(st.booleans()):
        receivers = np.sort(receivers)
    sizes = {"num_senders": num_senders, "num_receivers": num_receivers}
    return Graph(senders, receivers, **sizes, mode="drop").generic, rng


@given(graphs(), st.sampled_from(["float32", "int32"]))
def test_spmm_is_adjoint_to_that_of_the_turned_graph(drawn, dtype):
    graph, rng = drawn
    x = cases.small_integers(rng, (graph.num_senders, 3), dtype)
    y = cases.small_integers(rng, (graph.num_receivers, 3), dtype)
    w = cases.small_integers(rng, (graph.num_edges,), dtype)
    forth = np.asarray(spmm(graph, jnp.asarray(x), jnp.asarray(w)))
    back = np.asarray(spmm(graph.T, jnp.asarray(y), jnp.asarray(w)))
    dots = np.asarray(sddmm(graph, jnp.asarray(x), jnp.asarray(y)))
    assert (forth * y).sum() == (x * back).sum() == (w * dots).sum()


@given(graphs())
def test_spmm_is_a_gather_followed_by_a_sum(drawn):
    graph, rng = drawn
    x = jnp.asarray(cases.values(rng, (graph.num_senders, 3), "float32"))
    taken = jax_index.gather(x, graph.senders)
    oracle.assert_same(spmm(graph, x), jax_index.scatter_add(taken, graph.receivers))
    ones = jnp.ones(graph.num_edges, jnp.float32)
    oracle.assert_same(spmm(graph, x, ones), spmm(graph, x))
