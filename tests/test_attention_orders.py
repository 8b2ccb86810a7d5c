# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Second derivatives of attention for every argument, and dropped edges in all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_index import Graph, edge_softmax, gat_attention, graph_attention

from . import oracle
from .test_attention import ARRAYS, options_of
from .test_matmul import _random, assert_orders, joined

B, H, D = 2, 2, 3
GIVEN = (*_random(25, 5, 4, seed=4), 5, 4)
GRAPH = Graph(*GIVEN[:2], num_senders=5, num_receivers=4, mode="drop")
OPS = {
    "dot": graph_attention,
    "gat": gat_attention,
    "gat2": lambda *given, **options: gat_attention(*given, version=2, **options),
}


def node_shapes(op):
    q, k = (4, B, H, D), (5, B, H, D)
    return {
        "dot": [q, k, (5, B, H, 4)],
        "gat": [k, q, (2, H, D)],
        "gat2": [k, q, (H, D)],
    }[op]


def dense(op, nodes, edges, clip=None, normalize="softmax", denominator_offset=0.0):
    """The same with one-hot matrices; edges holds score_weights, bias and weights."""
    ends = joined(*GIVEN)
    S, R = (jnp.asarray(np.eye(n + 1)[i, :n]) for i, n in zip(ends, GIVEN[2:], strict=True))
    to_edges = lambda M, x: jnp.einsum("en,n...->e...", M, x)
    a, b, c = nodes
    if op == "dot":
        s, v = (to_edges(R, a) * to_edges(S, b)).sum(-1) / np.sqrt(D), c
    elif op == "gat":
        parts = jnp.einsum("nbhd,hd->nbh", a, c[0]), jnp.einsum("nbhd,hd->nbh", b, c[1])
        s, v = jax.nn.leaky_relu(to_edges(S, parts[0]) + to_edges(R, parts[1]), 0.2), a
    else:
        s = jnp.einsum("ebhd,hd->ebh", jax.nn.leaky_relu(to_edges(S, a) + to_edges(R, b), 0.2), c)
        v = a
    del normalize  # both mean the same
    full = lambda w: w.reshape(w.shape + (1,) * (s.ndim - w.ndim))
    multiplier, bias, weights = edges
    s = s if multiplier is None else s * full(multiplier)
    s = s if bias is None else s + full(bias)
    s = s if clip is None else jnp.clip(s, *clip)
    p = jnp.exp(s) * R.sum(1)[:, None, None]
    z = jnp.einsum("er,ebh->rbh", R, p) + denominator_offset
    share = p * to_edges(R, jnp.where(z == 0, 0, 1 / jnp.where(z == 0, 1, z)))
    share = share if weights is None else share * full(weights)
    return jnp.einsum("er,ebh,ebhd->rbhd", R, share, to_edges(S, v))


@pytest.mark.parametrize(
    ("op", "kind"),
    [("dot", "all"), ("gat", "size 1"), ("gat2", "full")],
)
def test_second_derivatives(device, rng, op, kind):
    with oracle.x64():
        options = options_of(rng, kind, 25, "float64", B, H)
        fixed = {k: v for k, v in options.items() if k not in ARRAYS}
        edges = [options.get(name) for name in ARRAYS]
        shapes = node_shapes(op) + [None if e is None else e.shape for e in edges]
        draw = lambda: [None if s is None else jnp.asarray(rng.standard_normal(s)) for s in shapes]
        arguments = draw()[:3] + [None if e is None else jnp.asarray(e) for e in edges]

        def ours(a, b, c, *edges):
            return OPS[op](GRAPH, a, b, c, **dict(zip(ARRAYS, edges, strict=True)), **fixed)

        wanted = lambda a, b, c, *edges: dense(op, (a, b, c), edges, **fixed)
        assert_orders(ours, wanted, arguments, draw(), rtol=1e-8)


@pytest.mark.parametrize(
    ("op", "normalize"), [("dot", "softmax"), ("gat", "sum"), ("gat2", "softmax")]
)
def test_nothing_of_a_dropped_edge_is_read(device, op, normalize):
    """Per-edge arrays and directions there, and nodes that only dropped edges name."""
    senders, receivers = np.array([0, 1, 3, 2, -1, 0]), np.array([1, 0, -1, 4, 1, 1])
    dropped = [2, 3, 4]  # alone they name the senders 2 and 3
    graph = Graph(senders, receivers, num_senders=4, num_receivers=3, mode="drop")
    q, k = (3, H, D), (4, H, D)
    shapes = {"dot": [q, k, k], "gat": [k, q, (2, H, D)], "gat2": [k, q, (H, D)]}[op]
    shapes = [*shapes, (6,), (6, H), (6, H)]

    @jax.jit
    def everything(arguments, ct, directions):
        def first(arguments, ct):
            def call(a, b, c, *edges):
                options = dict(zip(ARRAYS, edges, strict=True))
                return OPS[op](graph, a, b, c, normalize=normalize, clip=(-1, 1), **options)

            out, back = jax.vjp(call, *arguments)
            return out, back(ct)

        results, again = jax.vjp(first, arguments, ct)
        return results, again((ct, directions))

    found = []
    for poison in (0.0, np.nan, np.inf):
        rng = np.random.default_rng(0)
        arguments, directions = ([rng.standard_normal(s) for s in shapes] for _ in range(2))
        ct = rng.standard_normal(q)
        for values in (arguments, directions):
            for value, shape in zip(values, shapes, strict=True):
                if shape == k:
                    value[[2, 3]] = poison
                elif shape[0] == 6:
                    value[dropped] = poison
        ct[2] = poison if op == "dot" else 0
        as_floats = lambda t: jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), t)
        found.append(everything(*as_floats((tuple(arguments), ct, tuple(directions)))))
    (_, slopes), (second, _) = found[1]
    for grads in (slopes, second):
        for value in grads[3:]:
            assert (np.asarray(value)[dropped] == 0).all()
    for other in found[1:]:
        for a, b in zip(jax.tree.leaves(found[0]), jax.tree.leaves(other), strict=True):
            oracle.assert_same(b, a)


def test_a_dropped_edge_has_no_share(device):
    graph = Graph([0, 1, 5], [0, 0, 0], num_senders=2, num_receivers=1, mode="drop")
    scores = jnp.asarray([0.0, 1.0, jnp.nan])
    out, back = jax.vjp(lambda s: edge_softmax(graph, s), scores)
    np.testing.assert_allclose(out, [0.26894143, 0.7310586, 0], rtol=1e-6)
    assert back(jnp.asarray([1.0, 1.0, jnp.nan]))[0].tolist()[2] == 0
    assert np.isfinite(back(jnp.asarray([1.0, 0.0, jnp.inf]))[0]).all()
