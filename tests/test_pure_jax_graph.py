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


def test_segments(rng):
    """All in one program: values and gradients, what is dropped, and ties."""
    ids, n = np.array([4, 0, -1, 4, 2, 9, 4, 0, 0, 4, 5]), 6
    plan = jax_index.make_plan(ids, n, mode="drop")
    ops = {name: getattr(jax_index, f"segment_{name}") for name in NAMES}
    there = jnp.asarray((ids >= 0) & (ids < n))

    def wanted(name):
        if name != "softmax":
            return lambda v: dense_segment(name, v, ids, n)
        kept = lambda v: jnp.where(there, v, 0)
        return lambda v: kept(dense_segment(name, kept(v), ids, n))

    def everything(fs, x):
        out = {}
        for name, f in fs.items():
            value, back = jax.vjp(f, x)
            ct = jnp.where(jnp.isfinite(value), jnp.cos(jnp.arange(value.size)), 0)
            out[name] = value, back(ct)
        return out

    with oracle.x64():
        x = jnp.asarray(rng.standard_normal(ids.size))
        ours = {name: lambda v, op=op: op(v, plan) for name, op in ops.items()}
        dense = {name: wanted(name) for name in NAMES}
        found, expected = (jax.jit(lambda x, f=f: everything(f, x))(x) for f in (ours, dense))
        for name in NAMES:
            close(found[name], expected[name])
    x = jnp.asarray([2.0, jnp.nan, 2.0, jnp.inf], jnp.bfloat16)
    few = {name: lambda v, op=op: op(v, [0, -1, 0, 5], 1) for name, op in ops.items()}
    run = lambda x: {name: value_and_slopes(f, x) for name, f in few.items()}
    for name, (out, (slope,)) in jax.jit(run)(x).items():
        assert np.isfinite(np.asarray(out).astype(np.float32)[:1]).all(), name
        assert np.isfinite(np.asarray(slope).astype(np.float32)).all(), name
        if name in ("max", "min"):
            assert slope.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("dtype", ["int4", "float8_e4m3fn"])
def test_extrema_of_other_types(dtype):
    x = jnp.asarray([0, 1, 1]).astype(dtype)
    least, most = {
        "int4": (-8, 7),
        "float8_e4m3fn": (-448, 448),
    }[dtype]
    out = jax_index.segment_max(x, [0, 0, 2], 3).astype(jnp.float32)
    assert out.tolist() == [1, least, 1]
    out = jax_index.segment_min(x, [0, 0, 2], 3).astype(jnp.float32)
    assert out.tolist() == [0, most, 1]


def test_products_of_segments_beyond_the_range():
    x = jnp.asarray([1e30, 1e30, 2.0, 0.0, 1e-30, 3.0, jnp.inf, 0.5, jnp.nan, 4.0])
    ids = [3, 3, 3, 0, 0, -1, 1, 1, 2, 2]
    slope = jax.jit(jax.grad(lambda v: jax_index.segment_prod(v, ids, 5).sum()))
    wanted = [2e30, 2e30, np.inf, 1e-30, 0, 0, 0.5, np.inf, 4, np.nan]
    np.testing.assert_allclose(slope(x), wanted, rtol=1e-6)
    # A row of a thousand: no product of its parts is in range, that of all is.
    long = np.repeat([1e9, 1e-9], 500).astype(np.float32)
    found = jax.jit(jax.grad(lambda v: jax_index.segment_prod(v, [0] * 1000, 1).sum()))(long)
    np.testing.assert_allclose(found, np.repeat([1e-9, 1e9], 500), rtol=1e-3)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", [None, (2,)], ids=str)
def test_products(rng, kind, dtype):
    graph = Graph(*GIVEN[:2], num_senders=5, num_receivers=4, mode="drop")
    with oracle.x64():
        part = lambda shape: rng.standard_normal(shape) * (1j if dtype == "complex128" else 1)
        draw = lambda *shape: jnp.asarray(rng.standard_normal(shape) + part(shape))
        x, y = draw(5, 2, 3), draw(4, 2, 3)
        w = [] if kind is None else [draw(25, *kind)]
        ours = lambda x, *w: jax_index.spmm(graph, x, *w)
        wanted = lambda x, *w: dense_spmm(GIVEN, x, w[0] if w else None)
        close(with_gradients(ours, [x, *w], jnp.sin), with_gradients(wanted, [x, *w], jnp.sin))
        if kind is None:
            ours = lambda x, y: jax_index.sddmm(graph, x, y)
            wanted = lambda x, y: dense_sddmm(GIVEN, x, y)
            close(with_gradients(ours, [x, y], jnp.sin), with_gradients(wanted, [x, y], jnp.sin))
            return
    ints = rng.integers(-99, 99, (5, 2))
    ends = joined(*GIVEN)
    expected = graph_oracle.spmm(*ends, 4, ints.astype(np.int8))
    oracle.assert_same(jax_index.spmm(graph, jnp.asarray(ints, jnp.int8)), expected)


@pytest.mark.parametrize(("op", "kind"), [("dot", "all"), ("gat2", "size 1")])
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
            lambda g, x, w: jax_index.segment_std(w, g.receivers),
            lambda g, x, w: jax_index.segment_max(w, g.senders),
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
        segments = [getattr(jax_index, f"segment_{name}") for name in NAMES]
        every = jax.jit(lambda y, p, ops=segments: [op(y, p) for op in ops])(y, graph.receivers)
        for name, out in zip(NAMES, every, strict=True):
            assert out.shape == (m if name == "softmax" else n, 2, width)
        call = lambda x, w, g=graph: jax_index.graph_attention(g, x, x, x, weights=w)
        out, slopes = jax.jit(lambda x, w, f=call: value_and_slopes(f, x, w))(x, w)
        assert [v.shape for v in (out, *slopes)] == [x.shape, x.shape, w.shape]
