# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""The pure-JAX lowering of segments, products and attention, against dense matrices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import Graph

from . import oracle
from . import oracle_graph as graph_oracle
from .test_attention import options_of
from .test_attention_orders import ARRAYS, GIVEN, OPS, B, D, H, dense, node_shapes
from .test_matmul import dense_sddmm, dense_spmm, joined
from .test_pure_jax import _no_compiled_part, _no_warning  # noqa: F401 (fixtures)
from .test_segments import NAMES
from .test_segments_grad import dense as dense_segment


def close(found, expected, rtol=1e-9):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def value_and_slopes(f, *arguments):
    out, back = jax.vjp(f, *arguments)
    return out, back(out)


def with_gradients(f, arguments, ct):
    out, back = jax.jit(lambda *a: jax.vjp(f, *a))(*arguments)
    return out, back(ct(out))


def test_no_kernel_is_called():
    graph = Graph([0, 1], [1, 0], num_senders=2, num_receivers=2)
    h = jnp.ones((2, 1, 3))
    run = jax.jit(jax.grad(lambda h: jax_index.graph_attention(graph, h, h, h).sum()))
    assert "@jax_index." not in run.lower(h).as_text()


@pytest.mark.parametrize("name", NAMES)
def test_segments(rng, name):
    ids, n = np.array([4, 0, -1, 4, 2, 9, 4, 0, 0, 4, 5]), 6
    plan = jax_index.make_plan(ids, n, mode="drop")
    with oracle.x64():
        x = jnp.asarray(rng.standard_normal(ids.size))
        op = getattr(jax_index, f"segment_{name}")
        ct = lambda out: jnp.where(jnp.isfinite(out), jnp.cos(jnp.arange(out.size)), 0)
        found = with_gradients(lambda v: op(v, plan), [x], ct)
        if name == "softmax":
            there = jnp.asarray((ids >= 0) & (ids < n))
            wanted = lambda v: jnp.where(
                there, dense_segment(name, jnp.where(there, v, 0), ids, n), 0
            )
        else:
            wanted = lambda v: dense_segment(name, v, ids, n)
        close(found, with_gradients(wanted, [x], ct))
    # The edges of no row are not read, ties share, narrow floats are accumulated in float32.
    x = jnp.asarray([2.0, jnp.nan, 2.0, jnp.inf], jnp.bfloat16)
    out, back = jax.vjp(lambda v: op(v, [0, -1, 0, 5], 1), x)
    assert np.isfinite(np.asarray(out).astype(np.float32)[:1]).all()
    (slope,) = back(jnp.ones_like(out))
    assert np.isfinite(np.asarray(slope).astype(np.float32)).all()
    if name in ("max", "min"):
        assert slope.tolist() == [0.5, 0, 0.5, 0]


@pytest.mark.parametrize("dtype", ["int4", "uint8", "bool", "float8_e4m3fn"])
def test_extrema_of_other_types(dtype):
    x = jnp.asarray([0, 1, 1]).astype(dtype)
    least, most = {
        "int4": (-8, 7),
        "uint8": (0, 255),
        "bool": (False, True),
        "float8_e4m3fn": (-448, 448),
    }[dtype]
    out = jax_index.segment_max(x, [0, 0, 2], 3).astype(jnp.float32)
    assert out.tolist() == [1, least, 1]
    out = jax_index.segment_min(x, [0, 0, 2], 3).astype(jnp.float32)
    assert out.tolist() == [0, most, 1]


@pytest.mark.parametrize("kind", [None, (), (2,), (2, 3)], ids=str)
def test_products(rng, kind):
    graph = Graph(*GIVEN[:2], num_senders=5, num_receivers=4, mode="drop")
    with oracle.x64():
        draw = lambda *shape: jnp.asarray(rng.standard_normal(shape))
        x, y = draw(5, 2, 3), draw(4, 2, 3)
        w = [] if kind is None else [draw(25, *kind)]
        ours = lambda x, *w: jax_index.spmm(graph, x, *w)
        wanted = lambda x, *w: dense_spmm(GIVEN, x, w[0] if w else None)
        close(with_gradients(ours, [x, *w], jnp.sin), with_gradients(wanted, [x, *w], jnp.sin))
        ours = lambda x, y: jax_index.sddmm(graph, x, y)
        wanted = lambda x, y: dense_sddmm(GIVEN, x, y)
        close(with_gradients(ours, [x, y], jnp.sin), with_gradients(wanted, [x, y], jnp.sin))
    ints = rng.integers(-99, 99, (5, 2))
    ends = joined(*GIVEN)
    expected = graph_oracle.spmm(*ends, 4, ints.astype(np.int8))
    oracle.assert_same(jax_index.spmm(graph, jnp.asarray(ints, jnp.int8)), expected)


@pytest.mark.parametrize(
    ("op", "kind"), [("dot", "plain"), ("dot", "all"), ("gat", "size 1"), ("gat2", "all")]
)
def test_attention(rng, op, kind):
    graph = Graph(*GIVEN[:2], num_senders=5, num_receivers=4, mode="drop")
    with oracle.x64():
        options = options_of(rng, kind, 25, "float64", B, H)
        fixed = {k: v for k, v in options.items() if k not in ARRAYS}
        edges = [jnp.asarray(options[name]) for name in ARRAYS if name in options]
        names = [name for name in ARRAYS if name in options]
        nodes = [jnp.asarray(rng.standard_normal(s)) for s in node_shapes(op)]

        def ours(a, b, c, *edges):
            return OPS[op](graph, a, b, c, **dict(zip(names, edges, strict=True)), **fixed)

        def wanted(a, b, c, *edges):
            given = dict(zip(names, edges, strict=True))
            return dense(op, (a, b, c), [given.get(name) for name in ARRAYS], **fixed)

        arguments = [*nodes, *edges]
        found = with_gradients(ours, arguments, jnp.sin)
        close(found, with_gradients(wanted, arguments, jnp.sin))
    assert nodes[0].shape[-1] == D


def test_a_batch_of_graphs(rng):
    with oracle.x64():
        graphs = [
            Graph(
                *rng.integers(-1, 5, (2, 12)), num_senders=5, num_receivers=5, mode="drop"
            ).generic
            for _ in range(3)
        ]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
        x = jnp.asarray(rng.standard_normal((3, 5, 2, 3)))
        w = jnp.asarray(rng.standard_normal((3, 12, 2)))
        for call in (
            lambda g, x, w: jax_index.spmm(g, x, w),
            lambda g, x, w: jax_index.sddmm(g, x, x),
            lambda g, x, w: jax_index.edge_softmax(g, w),
            lambda g, x, w: jax_index.segment_std(w, g.receivers),
            lambda g, x, w: jax_index.segment_max(w, g.senders),
            lambda g, x, w: jax_index.graph_attention(g, x, x, x, bias=w),
            lambda g, x, w: jax_index.gat_attention(g, x, x, x[0], version=2, weights=w),
        ):
            finite = lambda v: jnp.where(jnp.isfinite(v), v, 0)
            found = jax.jit(jax.vmap(call))(stacked, x, w)
            shared = jax.jit(jax.vmap(call, (0, None, None)))(stacked, x[0], w[0])
            one = jax.jit(call)
            for k, graph in enumerate(graphs):
                close(finite(found[k]), finite(one(graph, x[k], w[k])))
                close(finite(shared[k]), finite(one(graph, x[0], w[0])))


def test_zero_sizes():
    for m, n, width in ((0, 3, 2), (3, 0, 2), (3, 3, 0)):
        ids = np.full(m, -1) if n == 0 else np.arange(m) % n
        graph = Graph(ids, ids, num_senders=n, num_receivers=n, mode="drop")
        x, y, w = jnp.ones((n, 2, width)), jnp.ones((m, 2, width)), jnp.ones((m, 2))
        for name in NAMES:
            out = getattr(jax_index, f"segment_{name}")(y, graph.receivers)
            assert out.shape == (m if name == "softmax" else n, 2, width)
        call = lambda x, w, g=graph: jax_index.graph_attention(g, x, x, x, weights=w)
        out, slopes = value_and_slopes(call, x, w)
        assert [v.shape for v in (out, *slopes)] == [x.shape, x.shape, w.shape]
