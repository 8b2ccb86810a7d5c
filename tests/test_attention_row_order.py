# SPDX-License-Identifier: Apache-2.0
"""Attention over a large graph keeps its scores in row order: which changes no bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_index import Graph, gat_attention, graph_attention, primitives
from jax_index.ops import attention_order

M, SENDERS, RECEIVERS = 400, 50, 37
FORMS = ("static", "hub", "no edges")


def make(form, rng):
    senders = rng.integers(-1, SENDERS, M)
    receivers = rng.integers(0, RECEIVERS, M)
    if form == "hub":
        receivers[:300] = 3
    if form == "no edges":
        senders, receivers = senders[:0], receivers[:0]
    sizes = {"num_senders": SENDERS, "num_receivers": RECEIVERS, "mode": "drop"}
    graph = Graph(senders, receivers, **sizes)
    return graph.static if form == "static" else graph


def results(graph, rng):
    """Values, gradients and a Hessian-vector product of both forms of attention."""
    m, heads = graph.num_edges, (2,)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    q, k, v = draw(RECEIVERS, *heads, 5), draw(SENDERS, *heads, 5), draw(SENDERS, *heads, 3)
    bias, weights = draw(m, *heads), draw(m)

    def dot(q, k, v, bias, weights):
        how = {"clip": (-2, 2), "denominator_offset": 0.5, "score_weights": weights}
        return graph_attention(graph, q, k, v, bias=bias, weights=weights, **how)

    def gat(h_s, h_r, att, bias):
        return gat_attention(graph, h_s, h_r, att, version=2, bias=bias)

    for f, args in ((dot, (q, k, v, bias, weights)), (gat, (k, q, q[0], bias))):
        out, pull = jax.vjp(jax.jit(f), *args)
        yield from (out, *pull(draw(*out.shape)))

    def loss(q):
        return jnp.sum(primitives.graph_attention(graph, q, k, v, bias=bias) ** 2)

    yield jax.jvp(jax.grad(loss), (q,), (q,))[1]


@pytest.mark.parametrize("form", FORMS)
def test_the_order_of_scores_changes_no_bit(form, monkeypatch):
    found = []
    for least in (1 << 20, 0):
        monkeypatch.setattr(attention_order, "MIN_EDGES", least)
        jax.clear_caches()
        rng = np.random.default_rng(7)
        graph = make(form, rng)
        moved = attention_order.in_row_order(graph, (), (2,))[0]
        assert moved.receivers.identity == (least == 0 or form == "no edges")
        found.append([np.asarray(a).tobytes() for a in results(graph, rng)])
    assert found[0] == found[1]


def test_scores_stay_where_moving_does_not_pay(monkeypatch):
    rng = np.random.default_rng(0)
    graph = make("arrays", rng)
    assert attention_order.in_row_order(graph, (), (2,))[0] is graph
    monkeypatch.setattr(attention_order, "MIN_EDGES", 0)
    assert attention_order.in_row_order(graph, (), (2, 4))[0] is graph
    ordered = graph.sort_edges()[0]
    assert attention_order.in_row_order(ordered, (), (2,))[0] is ordered
    moved, (edges,) = attention_order.in_row_order(graph, (jnp.arange(M),), (2,))
    assert moved.receivers.ids.tolist() == ordered.receivers.ids.tolist()
    # Rows of senders keep the caller's order, which that of a graph sorted anew is not.
    assert graph.receivers.perm[moved.senders.perm].tolist() == graph.senders.perm.tolist()
    assert edges.tolist() == graph.receivers.perm.tolist()
