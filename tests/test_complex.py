# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""spmm and sddmm of complex numbers: every bit of the written order, derivatives, transforms."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given

import jax_index
from jax_index import Graph, primitives, sddmm, spmm

from . import cases, oracle
from . import oracle_graph as graph_oracle
from .test_matmul import (
    GRAPHS,
    WEIGHTS,
    _random,
    dense_sddmm,
    dense_spmm,
    graphs,
    joined,
    make_graph,
)
from .test_properties import settings

settings.load_profile("here")

SMALL = (*_random(40, 6, 5), 6, 5)


def small_graph():
    return Graph(*SMALL[:2], num_senders=6, num_receivers=5, mode="drop")


def normal(rng, shape, dtype="complex128"):
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)


# --- Bits -----------------------------------------------------------------------------------------

TABLE = [("complex64", name, "edge and head") for name in GRAPHS]
TABLE += [("complex64", name, "full") for name in ("random", "hubs")]
TABLE += [("complex64", name, "none") for name in ("hubs", "no senders")]
TABLE += [("complex64", "random", "edge"), ("complex128", "random", "edge and head")]


@pytest.mark.parametrize(("dtype", "name", "kind"), TABLE)
def test_the_bits_of_spmm_and_its_gradients(device, rng, dtype, name, kind):
    graph, (senders, receivers, num_senders, num_receivers) = make_graph(name)
    senders, receivers = joined(senders, receivers, num_senders, num_receivers)
    shape = (2, 5) if dtype == "complex64" else (2, 3)
    with oracle.x64_for(dtype):
        x = cases.values(rng, (num_senders, *shape), dtype)
        ct = cases.values(rng, (num_receivers, *shape), dtype)
        w = {"full": shape}.get(kind, WEIGHTS[kind])
        w = None if w is None else cases.values(rng, (senders.size, *w), dtype)
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
    ("dtype", "name", "shape"),
    [("complex64", name, (2, 37)) for name in ("random", "hubs", "all dropped", "no edges")]
    + [("complex64", "square, in order", (*heads, 33)) for heads in ((), (1,), (2, 3))]
    + [("complex64", "square, in order", (3, depth)) for depth in (0, 1, 3, 31, 32, 64, 100)]
    + [("complex128", "square, in order", (35,))],
    ids=str,
)
def test_the_bits_of_sddmm_and_its_gradients(device, rng, dtype, name, shape):
    graph, (senders, receivers, num_senders, num_receivers) = make_graph(name)
    senders, receivers = joined(senders, receivers, num_senders, num_receivers)
    with oracle.x64_for(dtype):
        x = cases.values(rng, (num_senders, *shape), dtype)
        y = cases.values(rng, (num_receivers, *shape), dtype)
        ct = cases.values(rng, (senders.size, *shape[:-1]), dtype)

        def run(graph, x, y, ct):
            out, back = jax.vjp(lambda x, y: sddmm(graph, x, y), x, y)
            return out, *back(ct)

        out, of_x, of_y = jax.jit(run)(graph, jnp.asarray(x), jnp.asarray(y), jnp.asarray(ct))
        oracle.assert_same(out, graph_oracle.sddmm(senders, receivers, x, y))
        oracle.assert_same(of_x, graph_oracle.spmm(receivers, senders, num_senders, y, ct))
        oracle.assert_same(of_y, graph_oracle.spmm(senders, receivers, num_receivers, x, ct))


def test_the_parts_are_what_the_contract_says(device, rng):
    """One edge and one feature: the two roundings of each part, and which factor stands where."""
    graph = Graph([0], [0], num_senders=1, num_receivers=1)
    (x, y), c = normal(rng, 2, "complex64"), np.float32
    out = sddmm(graph, jnp.full((1, 1), x), jnp.full((1, 1), y))[0]
    # fma(a, b, 0) is the product rounded; the second one is exact in float64 before its rounding.
    step = lambda a, b, total: c(float(a) * float(b) + float(total))
    real = step(-x.imag, y.imag, c(x.real * y.real))
    imaginary = step(x.imag, y.real, c(x.real * y.imag))
    assert (out.real, out.imag) == (real, imaginary)
    # spmm takes the weight first.
    out = spmm(graph, jnp.full((1, 1), y), jnp.full(1, x))[0, 0]
    assert (out.real, out.imag) == (real, imaginary)


# --- Derivatives ----------------------------------------------------------------------------------


def orders(f, arguments, directions):
    """The value, the gradient of a real loss and the gradient of a slope of that."""
    at = tuple(range(len(arguments)))

    def loss(*a):
        out = f(*a)
        scale = jnp.arange(1.0, out.size + 1).reshape(out.shape)
        return (jnp.sin(out.real) * scale + out.imag * out.real**2).sum()

    def slope(*a):
        pairs = zip(jax.grad(loss, at)(*a), directions, strict=True)
        return sum((g * d).sum().real for g, d in pairs)

    both = lambda *a: (f(*a), jax.grad(loss, at)(*a), jax.grad(slope, at)(*a))
    return jax.tree.leaves(jax.jit(both)(*arguments))


def close(found, expected, tolerance=1e-9):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


# name: (ours of a module, the dense one, the shapes of its arguments)
OPS = {
    "spmm": (
        lambda M: lambda x, w: M.spmm(small_graph(), x, w),
        lambda x, w: dense_spmm(SMALL, x, w),
        ((6, 2, 3), (40, 2)),
    ),
    "spmm, full": (
        lambda M: lambda x, w: M.spmm(small_graph(), x, w),
        lambda x, w: dense_spmm(SMALL, x, w),
        ((6, 3), (40, 3)),
    ),
    "spmm, no weights": (
        lambda M: lambda x: M.spmm(small_graph(), x),
        lambda x: dense_spmm(SMALL, x, None),
        ((6, 3),),
    ),
    "sddmm": (
        lambda M: lambda x, y: M.sddmm(small_graph(), x, y),
        lambda x, y: dense_sddmm(SMALL, x, y),
        ((6, 2, 3), (5, 2, 3)),
    ),
}


@pytest.fixture(params=OPS)
def op(request):
    return OPS[request.param]


def test_second_derivatives(device, rng, op):
    ours, dense, shapes = op
    with oracle.x64():
        draw = lambda: [jnp.asarray(normal(rng, s)) for s in shapes]
        arguments, directions = draw(), draw()
        close(*(orders(f, arguments, directions) for f in (ours(jax_index), dense)))


def test_forward_mode(device, rng, op):
    ours, dense, shapes = op
    with oracle.x64():
        draw = lambda: [jnp.asarray(normal(rng, s)) for s in shapes]
        arguments, dots, more = draw(), draw(), draw()

        def everything(f):
            along = lambda *a: jax.jvp(f, a, tuple(dots))[1]
            adjoint = jax.linear_transpose(lambda v: f(v, *arguments[1:]), arguments[0])
            out, twice = jax.jvp(along, tuple(arguments), tuple(more))
            whole = jax.jacfwd(f, holomorphic=True)(*arguments)
            return out, twice, whole, adjoint(out)

        both = (jax.jit(lambda f=f: everything(f))() for f in (ours(primitives), dense))
        close(*both)


def test_the_tangent_is_computed_by_our_kernels_alone(rng):
    x, w = (jnp.asarray(normal(rng, s, "complex64")) for s in ((6, 2, 3), (40, 2)))

    def everything(x, w, dx, dw):
        f = lambda x, w: primitives.spmm(small_graph(), x, w)
        out, tangent = jax.jvp(f, (x, w), (dx, dw))
        return tangent, jax.vjp(f, x, w)[1](out)

    text = jax.jit(everything).lower(x, w, x, w).as_text()
    assert "@jax_index" in text
    assert not re.search(r"stablehlo\.(add|subtract|multiply|divide|negate)\b.*(f32|complex)", text)
    found = everything(x, w, x, w)[0]
    # Both terms are equal here, so their sum is exact.
    oracle.assert_same(found, 2 * np.asarray(spmm(small_graph(), x, w)))


def test_a_cotangent_is_not_conjugated(device):
    graph = Graph([0, 1], [0, 0], num_senders=2, num_receivers=1)
    x = jnp.asarray([1 + 2j, 3j], jnp.complex64)
    w = jnp.asarray([2 - 1j, 1j], jnp.complex64)
    out, back = jax.vjp(lambda x, w: spmm(graph, x, w), x, w)
    assert out.tolist() == [(1 + 2j) * (2 - 1j) - 3]
    of_x, of_w = back(jnp.asarray([1j], jnp.complex64))
    assert of_x.tolist() == [1j * (2 - 1j), -1]
    assert of_w.tolist() == [1j * (1 + 2j), -3]


# --- Types, transforms, laws ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_x", "of_w", "result"),
    [
        ("float32", "complex64", "complex64"),
        ("complex64", "float32", "complex64"),
        ("complex64", "bfloat16", "complex64"),
        ("int32", "complex64", "complex64"),
        ("float64", "complex64", "complex128"),
        ("complex64", "complex128", "complex128"),
    ],
)
def test_operands_promote(device, rng, of_x, of_w, result):
    """Cotangents have the types of their operands: the real part, where that is real."""
    small = lambda shape, dtype: jnp.asarray(
        cases.small_integers(rng, shape, dtype)
        + (1j * cases.small_integers(rng, shape, "float64") if dtype.startswith("c") else 0)
    ).astype(dtype)
    with oracle.x64(), jax.numpy_dtype_promotion("standard"):
        x, w, y = small((6, 3), of_x), small((40,), of_w), small((5, 3), of_w)
        graph = small_graph()
        calls = [(lambda x, w: spmm(graph, x, w), lambda x, w: dense_spmm(SMALL, x, w), w)]
        calls += [(lambda x, y: sddmm(graph, x, y), lambda x, y: dense_sddmm(SMALL, x, y), y)]
        for ours, dense, other in calls:
            found, back = jax.vjp(ours, x, other)
            wide = [v.astype(complex) for v in (x, other)]
            expected, dense_back = jax.vjp(dense, *wide)
            assert found.dtype == result
            assert (np.asarray(found) == np.asarray(expected)).all()
            cts = back(found), dense_back(expected)
            for v, ct, wanted in zip((x, other), *cts, strict=True):
                if v.dtype == np.int32:
                    assert ct.dtype == jax.dtypes.float0
                    continue
                assert ct.dtype == v.dtype
                wanted = wanted if v.dtype.kind == "c" else wanted.real.astype(v.dtype)
                assert (np.asarray(ct) == np.asarray(wanted)).all()


def test_a_batch_has_the_bits_of_a_loop(device, rng):
    draw = lambda *shape: jnp.asarray(normal(rng, shape, "complex64"))
    graph, x, y, w = small_graph(), draw(3, 6, 2, 5), draw(5, 3, 2, 5), draw(40, 2, 3)
    other = Graph(*SMALL[1::-1], num_senders=6, num_receivers=5, mode="drop")
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), graph.generic, other.generic)

    def run(graph, x, y, w):
        out, back = jax.vjp(lambda x, w: spmm(graph, x, w), x, w)
        return out, back(out), sddmm(graph, x, y)

    found = jax.jit(jax.vmap(run, (None, 0, 1, 2)))(graph, x, y, w)
    nested = jax.vmap(jax.vmap(run, (None, 0, 1, 2)), (0, None, None, None))(both, x, y, w)
    for k in range(3):
        oracle.assert_same(
            jax.tree.map(lambda v, k=k: v[k], found)[0], run(graph, x[k], y[:, k], w[..., k])[0]
        )
        for g, plan in enumerate((graph, other)):
            one = run(plan, x[k], y[:, k], w[..., k])
            for a, b in zip(jax.tree.leaves(nested), jax.tree.leaves(one), strict=True):
                oracle.assert_same(a[g, k], b)


@given(graphs(), st.sampled_from([("complex64", (2, 3)), ("complex128", ())]))
def test_spmm_is_adjoint_to_that_of_the_turned_graph(drawn, kind):
    """In whole numbers, so that every sum is exact."""
    (graph, rng), (dtype, trailing) = drawn, kind
    draw = lambda *shape: (
        cases.small_integers(rng, shape, dtype)
        + np.dtype(dtype).type(1j) * cases.small_integers(rng, shape, dtype)
    )
    with oracle.x64():
        x, y = draw(graph.num_senders, *trailing, 2), draw(graph.num_receivers, *trailing, 2)
        w = draw(graph.num_edges, *trailing)
        forth = np.asarray(spmm(graph, jnp.asarray(x), jnp.asarray(w)))
        back = np.asarray(spmm(graph.T, jnp.asarray(y), jnp.asarray(w)))
        dots = np.asarray(sddmm(graph, jnp.asarray(x), jnp.asarray(y)))
        assert forth.dtype == back.dtype == dots.dtype == dtype
        assert (forth * y).sum() == (x * back).sum() == (w * dots).sum()


def test_nothing_of_a_dropped_edge_is_read(device, rng):
    graph = Graph([0, 1, 3, 2], [1, 0, -1, 9], num_senders=4, num_receivers=2, mode="drop")
    x, w = normal(rng, (4, 2), "complex64"), normal(rng, 4, "complex64")
    ct = jnp.asarray(normal(rng, (2, 2), "complex64"))
    found = []
    for poison in (0, complex(np.nan, np.inf)):
        x[2:] = w[2:] = poison
        out, back = jax.vjp(lambda x, w: spmm(graph, x, w), jnp.asarray(x), jnp.asarray(w))
        found.append(jax.tree.leaves((out, back(ct), sddmm(graph, jnp.asarray(x), ct))))
    for a, b in zip(*found, strict=True):
        oracle.assert_same(b, a)
    assert (np.asarray(found[1][2])[2:] == 0).all()


def test_a_complex_sparse_matrix(device, rng):
    A = scipy.sparse.random_array((20, 30), density=0.2, rng=rng, dtype=np.float32)
    A.data = np.round(A.data * 8)
    A = (A * np.complex64(1 - 2j)).tocsr()
    graph, weights = Graph.from_scipy(A)
    assert weights.dtype == np.complex64
    x = cases.small_integers(rng, (30, 4), "complex64")
    assert (np.asarray(spmm(graph, jnp.asarray(x), weights)) == A @ x).all()


def test_a_part_of_a_graph(device, rng):
    spec = jax.sharding.PartitionSpec("parts")
    mesh = jax.make_mesh((1,), ("parts",), devices=[device])
    parts = jax_index.partition(small_graph(), 1, sharding=jax.sharding.NamedSharding(mesh, spec))
    x, y, w = (jnp.asarray(normal(rng, s, "complex64")) for s in ((6, 2), (5, 2), 40))

    def layer(parts, x, y, w):
        part = parts.local("parts")
        return part.spmm(x[0], w[0])[None], part.sddmm(x[0], y[0])[None]

    run = jax.jit(jax.shard_map(layer, mesh=mesh, in_specs=spec, out_specs=spec))
    kinds = ("senders", "receivers", "edges")
    total, dots = run(parts, *(parts.split(v, k) for v, k in zip((x, y, w), kinds, strict=True)))
    oracle.assert_same(parts.join(total, "receivers"), spmm(small_graph(), x, w))
    oracle.assert_same(parts.join(dots, "edges"), sddmm(small_graph(), x, y))


def test_attention_stays_real(rng):
    graph, h = small_graph(), jnp.ones((6, 1, 2))
    q = jnp.ones((5, 1, 2))
    with pytest.raises(TypeError, match="bias must be real, got dtype complex64"):
        jax_index.graph_attention(graph, q, h, h, bias=jnp.ones(40, jnp.complex64))
    with pytest.raises(TypeError, match="q must be a float array"):
        jax_index.graph_attention(graph, q.astype(jnp.complex64), h, h)
