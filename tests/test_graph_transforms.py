# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Segments, products and attention under vmap and control flow; what their programs are made of."""

from __future__ import annotations

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import Graph

from . import oracle
from .test_transforms import moving_operations

M, NS, NR, H, D = 12, 5, 4, 2, 3
SIZES = {"num_senders": NS, "num_receivers": NR}


class Op(NamedTuple):
    """f(graph, *arrays), the shapes of the arrays, and how many of their last axes are dots."""

    call: object
    shapes: tuple
    depth: tuple


def attention(call):
    def with_edges(graph, a, b, c, weights, bias):
        return call(graph, a, b, c, weights=weights, bias=bias, clip=(-1, 1))

    return with_edges


def segment(name):
    op = getattr(jax_index, f"segment_{name}")
    return Op(lambda graph, x: op(x, graph.receivers), ((M, 2),), (0,))


Q, K = (NR, H, D), (NS, H, D)
OPS = {
    name: segment(name)
    for name in ("sum", "mean", "max", "prod", "var", "std", "softmax", "logsumexp")
}
OPS |= {
    "spmm": Op(jax_index.spmm, (K, (M, H)), (0, 0)),
    "spmm, no weights": Op(jax_index.spmm, (K,), (0,)),
    "sddmm": Op(jax_index.sddmm, (K, Q), (1, 1)),
    "edge_softmax": Op(jax_index.edge_softmax, ((M, H),), (0,)),
    "attention": Op(attention(jax_index.graph_attention), (Q, K, K, (M,), (M, H)), (1, 1, 1, 0, 0)),
    "gat": Op(attention(jax_index.gat_attention), (K, Q, (2, H, D), (M,), (M, H)), (1, 1, 2, 0, 0)),
    "gat2": Op(
        attention(lambda *a, **k: jax_index.gat_attention(*a, version=2, **k)),
        (K, Q, (H, D), (M,), (M, H)),
        (1, 1, 2, 0, 0),
    ),
}


def make_graph(rng):
    senders, receivers = rng.integers(-1, NS + 1, M), rng.integers(-1, NR, M)
    return on_host(Graph(senders, receivers, **SIZES, mode="drop").generic)


# Arrays stay on the host until they are used: JAX would compile every stack and every slice.


def on_host(tree):
    return jax.tree.map(np.asarray, tree)


def stack(trees):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def draw(rng, op, lead=()):
    return [rng.standard_normal((*lead, *s)).astype(np.float32) for s in OPS[op].shapes]


def with_gradients(op):
    """f(graph, arrays, cotangent): the value and the cotangents of all arrays."""

    def run(graph, arrays, ct):
        out, back = jax.vjp(lambda *a: OPS[op].call(graph, *a), *arrays)
        return out, *back(ct)

    return run


def cotangent(rng, op, graph, arrays):
    out = jax.eval_shape(OPS[op].call, graph, *arrays)
    return rng.standard_normal(out.shape).astype(out.dtype)


# --- What a program is made of --------------------------------------------------------------------

ARITHMETIC = (
    "add subtract multiply divide power exponential log sqrt rsqrt tanh logistic maximum minimum "
    "reduce reduce_window dot dot_general convolution convert compare scatter sine cosine abs"
)
FLOAT = r"tensor<(?:[\dx]*x)?(?:f|bf)\d"


def float_arithmetic(text):
    """The operations of XLA that compute with floats; moves, choices and signs are none."""
    found = []
    for line in text.splitlines():
        for name in re.findall(r"stablehlo\.(\w+)", line):
            if name in ARITHMETIC.split() and re.search(FLOAT, line):
                found.append(name)
    return found


def test_the_check_of_programs_sees_arithmetic():
    x = jnp.ones((3, 4))
    found = lambda f: float_arithmetic(jax.jit(f).lower(x).as_text())
    assert found(lambda v: (v[:, None, :2], -v, v.T, v.astype(jnp.int32) + 1)) == ["convert"]
    assert found(lambda v: jnp.where(v == v.T[0, 0], v, v.T[1, 1])) == ["compare"]
    assert found(lambda v: v + 1) == ["add"]
    assert found(lambda v: v.astype(jnp.bfloat16)) == ["convert"]
    assert "reduce" in found(lambda v: v.sum(0))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", OPS)
def test_no_op_and_no_gradient_computes_with_xla(rng, op, dtype):
    """XLA's own arithmetic flushes subnormals and contracts, each back end in its own way."""
    graph = make_graph(rng)
    arrays = [v.astype(dtype) for v in draw(rng, op)]
    with jax.numpy_dtype_promotion("standard"):
        ct = cotangent(rng, op, graph, arrays)
        text = jax.jit(with_gradients(op)).lower(graph, arrays, ct).as_text()
    assert float_arithmetic(text) == []
    assert text.count("custom_call") >= 1


@pytest.mark.parametrize("op", [op for op in OPS if op != "spmm, no weights"])
def test_second_derivatives_add_and_do_nothing_else_with_xla(rng, op):
    """JAX itself adds the cotangents of what a derivative uses twice."""
    graph, arrays = make_graph(rng), draw(rng, op)
    ct = cotangent(rng, op, graph, arrays)

    def twice(graph, arrays, ct, directions):
        first = lambda arrays, ct: with_gradients(op)(graph, arrays, ct)[1:]
        return jax.vjp(first, arrays, ct)[1](tuple(directions))

    text = jax.jit(twice).lower(graph, arrays, ct, arrays).as_text()
    assert set(float_arithmetic(text)) <= {"add"}


def test_complex_means_compute_with_our_kernels_alone(rng):
    run = lambda x, ct, p: jax.vjp(lambda v: jax_index.segment_mean(v, p), x)[1](ct)
    x, ct = jnp.ones((M, 2), jnp.complex64), jnp.ones((NR, 2), jnp.complex64)
    text = jax.jit(run).lower(x, ct, make_graph(rng).receivers).as_text()
    assert not re.search(r"stablehlo\.(add|multiply|divide|convert)\b.*(f32|complex)", text)


MEMORY = {
    "spmm": (lambda g, x, w: jax_index.spmm(g, x, w), 1),
    "attention": (lambda g, x, w: jax_index.graph_attention(g, x, x, x, weights=w), 8),
    "gat2": (lambda g, x, w: jax_index.gat_attention(g, x, x, x[0], version=2, weights=w), 8),
}


@pytest.mark.parametrize("name", MEMORY)
def test_no_array_of_edges_times_features_is_made(rng, name):
    """Room for nodes times features and for edges times heads, however often; no more."""
    call, times = MEMORY[name]
    n, m, heads, depth = 500, 40_000, 2, 64
    graph = Graph(rng.integers(0, n, m), rng.integers(0, n, m), num_senders=n, num_receivers=n)
    x, w = jnp.ones((n, heads, depth)), jnp.ones((m, heads))
    loss = lambda g, x, w: (call(g, x, w) ** 2).sum()
    for fn in (call, jax.grad(loss, argnums=(1, 2))):
        compiled = jax.jit(fn).lower(graph, x, w).compile()
        room = compiled.memory_analysis().temp_size_in_bytes
        assert room <= 4 * (10 * n * heads * depth + 2 * times * m * heads)
        assert room < 4 * m * heads * depth / 2


# --- vmap -----------------------------------------------------------------------------------------


def pieces(tree, axes, k):
    """Entry k of a batch, by in_axes of the leaves."""
    return [v if a is None else np.take(v, k, axis=a) for v, a in zip(tree, axes, strict=True)]


def assert_as_looped(fn, batched, graph_axis, axes, graph, arrays, rest, rest_axis, size=3):
    out = on_host(jax.jit(jax.vmap(batched, (graph_axis, axes, rest_axis)))(graph, arrays, rest))
    loop = jax.jit(fn)
    for k in range(size):
        one = graph if graph_axis is None else jax.tree.map(lambda leaf, k=k: leaf[k], graph)
        other = rest if rest_axis is None else jax.tree.map(lambda leaf, k=k: leaf[k], rest)
        expected = loop(one, pieces(arrays, axes, k), other)
        for a, b in zip(jax.tree.leaves(out), jax.tree.leaves(expected), strict=True):
            oracle.assert_same(a[k], b)


def batches(op):
    """(whether graphs differ, the batch axis of each array) for each array alone, and for all."""
    count = len(OPS[op].shapes)
    yield True, [None] * count
    yield True, [0] * count
    for k, shape in enumerate(OPS[op].shapes):
        for axis in {0, len(shape) if op in ("spmm", "sddmm") else 1}:
            yield False, [axis if j == k else None for j in range(count)]
    yield (
        False,
        [len(shape) - depth for shape, depth in zip(OPS[op].shapes, OPS[op].depth, strict=True)],
    )


# Of the reductions those whose kernels the others are made of.
BATCHED = [op for op in OPS if op not in ("sum", "mean", "var", "logsumexp", "edge_softmax")]


@pytest.mark.parametrize("op", BATCHED)
def test_vmap_over_each_argument(device, rng, op):
    """The bits of a loop; as many calls of kernels as without a batch, and no loop."""
    call = lambda graph, arrays, _: OPS[op].call(graph, *arrays)
    single = make_graph(rng)
    arrays = draw(rng, op)
    plain = jax.jit(lambda g, a: OPS[op].call(g, *a)).lower(single, arrays).as_text()
    for over_graphs, axes in batches(op):
        graph = stack([make_graph(rng) for _ in range(3)]) if over_graphs else single
        many = [
            v if a is None else np.moveaxis(np.stack([v, 2 * v, -v]), 0, a)
            for v, a in zip(draw(rng, op), axes, strict=True)
        ]
        graph_axis = 0 if over_graphs else None
        assert_as_looped(call, call, graph_axis, axes, graph, many, None, None)
        last = jax.eval_shape(OPS[op].call, single, *arrays).ndim
        out_axis = min([last, *(a for a in axes if a is not None)]) if any(axes) else 0
        batched = jax.vmap(lambda g, a: OPS[op].call(g, *a), (graph_axis, axes), out_axis)
        text = jax.jit(batched).lower(graph, many).as_text()
        assert text.count("custom_call") == plain.count("custom_call"), axes
        moved = set(moving_operations(text)) - set(moving_operations(plain))
        # A batch behind the features of a dot, or in several places, is brought to one.
        given = zip(axes, OPS[op].shapes, OPS[op].depth, strict=True)
        behind = any(a is not None and a > len(s) - d for a, s, d in given)
        allowed = behind or len({a for a in axes if a is not None}) > 1
        allowed = allowed or (op.startswith("gat") and axes[2] not in (None, 0))
        assert moved <= ({"transpose"} if allowed else set()), (axes, moved)


@pytest.mark.parametrize("op", BATCHED)
def test_vmap_of_gradients(device, rng, op):
    count = len(OPS[op].shapes)
    run = with_gradients(op)
    graphs = stack([make_graph(rng) for _ in range(3)])
    arrays = draw(rng, op, (3,))
    ct = np.stack([cotangent(rng, op, make_graph(rng), draw(rng, op)) for _ in range(3)])
    assert_as_looped(run, run, 0, [0] * count, graphs, arrays, ct, 0)
    # One graph, arrays that all share but the first, and the other way round.
    graph = make_graph(rng)
    for first in (0, None):
        axes = [first, *[None if first == 0 else 0] * (count - 1)]
        if axes == [None]:
            continue
        some = [v if a == 0 else v[0] for v, a in zip(arrays, axes, strict=True)]
        assert_as_looped(run, run, None, axes, graph, some, ct[0], None)


@pytest.mark.parametrize("op", BATCHED)
def test_gradients_of_what_a_batch_shares(device, rng, op):
    """The gradient of a vmap over graphs is the sum of the gradients, in arrays that all share."""
    count = len(OPS[op].shapes)
    with oracle.x64():
        graphs = [make_graph(rng) for _ in range(3)]
        arrays = [v.astype(np.float64) for v in draw(rng, op)]
        call = lambda g, *a: jnp.sin(OPS[op].call(g, *a))
        finite = lambda v: jnp.where(jnp.isfinite(v), v, 0).sum()
        every = jax.vmap(call, (0, *[None] * count))
        at = tuple(range(count))
        found = jax.jit(jax.grad(lambda *a: finite(every(stack(graphs), *a)), at))(*arrays)
        one = jax.jit(jax.grad(lambda g, *a: finite(call(g, *a)), tuple(k + 1 for k in at)))
        each = [one(g, *arrays) for g in graphs]
        for k in at:
            np.testing.assert_allclose(found[k], sum(e[k] for e in each), rtol=1e-9, atol=1e-9)


def test_second_derivatives_of_what_only_weights_differ_in(device, rng):
    """One cotangent for all weights: some of the gradients carry the batch and some do not."""
    with oracle.x64():
        graph, x = make_graph(rng), jnp.asarray(rng.standard_normal(K))
        weights, ct = jnp.asarray(rng.random((3, M))), jnp.asarray(rng.standard_normal(Q))

        def first(x, w):
            call = lambda x, w: jax_index.graph_attention(graph, x[:NR], x, x, weights=w)
            return jax.vjp(call, x, w)[1](ct)

        total = lambda grads: sum((g**2).sum() for g in grads)
        batched = jax.grad(lambda x: total(jax.vmap(first, (None, 0))(x, weights)))
        looped = jax.grad(lambda x: sum(total(first(x, w)) for w in weights))
        np.testing.assert_allclose(jax.jit(batched)(x), jax.jit(looped)(x), rtol=1e-10)


@pytest.mark.parametrize("op", ["softmax", "max", "spmm", "sddmm", "attention", "gat2"])
def test_nested_vmap(device, rng, op):
    """Graphs along one axis, the first array along another and all others along both."""
    count = len(OPS[op].shapes)
    graphs = stack([make_graph(rng) for _ in range(2)])
    arrays = draw(rng, op, (2, 3))
    arrays[0] = arrays[0][0]
    call = lambda g, *a: OPS[op].call(g, *a)
    inner = jax.vmap(call, (None, 0, *[0] * (count - 1)))
    out = on_host(jax.jit(jax.vmap(inner, (0, None, *[0] * (count - 1))))(graphs, *arrays))
    one = jax.jit(call)
    for i in range(2):
        for j in range(3):
            graph = jax.tree.map(lambda leaf, i=i: leaf[i], graphs)
            expected = one(graph, arrays[0][j], *(v[i, j] for v in arrays[1:]))
            oracle.assert_same(out[i, j], expected)


# --- Control flow ---------------------------------------------------------------------------------


def layer(op):
    """A step that keeps the shape of node features, for loops."""
    calls = {
        "segments": lambda h, g: jax_index.segment_mean(
            jax_index.gather(h, g.senders), g.receivers
        ),
        "spmm": lambda h, g: jax_index.spmm(g, h, jax_index.sddmm(g, h, h)),
        "attention": lambda h, g: jax_index.graph_attention(g, h, h, h),
        "gat": lambda h, g: jax_index.gat_attention(g, h, h, jnp.ones((2, H, D))),
    }
    return calls[op]


@pytest.mark.parametrize("op", ["segments", "spmm", "attention", "gat"])
def test_scan_remat_and_shapes(device, rng, op):
    step = layer(op)
    graphs = []
    for _ in range(3):
        ends = rng.integers(-1, NS, (2, M))
        made = Graph(*ends, num_senders=NS, num_receivers=NS, mode="drop")
        graphs.append(on_host(made.generic))
    h = jnp.asarray(rng.standard_normal((NS, H, D)) / 2, jnp.float32)
    looped = h
    one = jax.jit(step)
    for graph in graphs:
        oracle.assert_same(step(looped, graph), one(looped, graph))
        looped = one(looped, graph)
    scanned = jax.jit(lambda h, g: jax.lax.scan(lambda c, g: (step(c, g), None), h, g)[0])
    oracle.assert_same(scanned(h, stack(graphs)), looped)
    closed = jax.lax.fori_loop(0, 1, lambda _, c: step(c, graphs[0]), h)
    oracle.assert_same(closed, one(h, graphs[0]))
    # Recomputing gives the same bits, whatever is kept.
    plain = lambda h, g: jax.vjp(lambda h: step(h, g), h)[1](h)[0]
    kept = lambda h, g: jax.vjp(jax.checkpoint(lambda h: step(h, g)), h)[1](h)[0]
    oracle.assert_same(jax.jit(kept)(h, graphs[0]), jax.jit(plain)(h, graphs[0]))
    shapes = jax.eval_shape(step, h, jax.eval_shape(lambda g: g, graphs[0]))
    assert (shapes.shape, shapes.dtype) == (h.shape, h.dtype)
    compiled = jax.jit(step).lower(h, graphs[0]).compile()
    oracle.assert_same(compiled(h, graphs[1]), one(h, graphs[1]))
    # Traced ids: the graph is made on the device.
    senders, receivers = (np.asarray(p.ids) for p in (graphs[0].senders, graphs[0].receivers))
    sizes = {"num_senders": NS, "num_receivers": NS}
    traced = jax.jit(lambda h, s, r: step(h, Graph(s, r, **sizes)))
    oracle.assert_same(traced(h, senders, receivers), one(h, graphs[0]))


def test_one_trace_for_graphs_of_equal_sizes(device, rng):
    traces = []

    @jax.jit
    def run(graph, h):
        traces.append(1)
        return jax_index.graph_attention(graph, h[:NR], h, h)

    h = jnp.asarray(rng.standard_normal((NS, H, D)), jnp.float32)
    outs = {np.asarray(run(make_graph(rng), h)).tobytes() for _ in range(4)}
    assert len(traces) == 1
    assert len(outs) > 1
