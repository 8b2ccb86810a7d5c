# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Graph: what it holds, how it is made of plans and ids, turned, ordered, padded and passed on."""

from __future__ import annotations

import copy
import dataclasses
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import Graph, gather, make_plan, scatter_add

from . import cases, oracle, test_plan

FIELDS = ("senders", "receivers", "sender_of", "receiver_of")


def _random(num_senders, num_receivers, count, low_s=0, low_r=0, seed=7):
    rng = np.random.default_rng(seed)
    senders = rng.integers(low_s, num_senders - low_s, count)
    return senders, rng.integers(low_r, num_receivers - low_r, count), num_senders, num_receivers


def _hubs():
    ids, n = cases.PATTERNS["hubs"]
    return ids, np.roll(ids[::-1], 5), n, n


def _ordered():
    senders, receivers, *sizes = _random(30, 9, 200)
    return senders, np.sort(receivers), *sizes


# name: (senders, receivers, num_senders, num_receivers); ids out of range are dropped.
GRAPHS = {
    "square": _random(20, 20, 300),
    "bipartite": _random(11, 50, 300),
    "dropped senders": _random(20, 20, 300, low_s=-3),
    "dropped receivers": _random(20, 8, 300, low_r=-2),
    "dropped at both ends": _random(12, 20, 300, -3, -3),
    "hubs": _hubs(),
    "in order": _ordered(),
    "one edge": (np.array([3]), np.array([0]), 4, 1),
    "no edges": (np.zeros(0, np.int64), np.zeros(0, np.int64), 3, 2),
    "no senders": (np.array([0, -1]), np.array([1, 0]), 0, 2),
    "all dropped": (np.array([-1, 2, 9]), np.array([1, 5, -7]), 3, 4),
}


def make(name):
    senders, receivers, n_s, n_r = GRAPHS[name]
    return Graph(senders, receivers, num_senders=n_s, num_receivers=n_r, mode="drop")


def ends(graph):
    return graph.senders, graph.receivers


def dropped(senders, receivers, n_s, n_r):
    return (senders < 0) | (senders >= n_s) | (receivers < 0) | (receivers >= n_r)


def assert_joins(graph, senders, receivers, n_s, n_r):
    """The documented fields, by NumPy, of whatever ids."""
    gone = dropped(senders, receivers, n_s, n_r)
    s, r = np.where(gone, -1, senders), np.where(gone, -1, receivers)
    test_plan.assert_holds(graph.senders, s, n_s)
    test_plan.assert_holds(graph.receivers, r, n_r)
    by_receiver = np.argsort(np.where(gone, n_r, r), kind="stable")
    by_sender = np.argsort(np.where(gone, n_s, s), kind="stable")
    for leaf, expected in ((graph.sender_of, s[by_receiver]), (graph.receiver_of, r[by_sender])):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == jnp.int32
        np.testing.assert_array_equal(leaf, expected)
    sizes = graph.num_senders, graph.num_receivers, graph.num_edges
    assert sizes == (n_s, n_r, len(senders))


def assert_same_leaves(graph, other):
    assert len(jax.tree.leaves(graph)) == 10
    for leaf, expected in zip(jax.tree.leaves(graph), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(leaf, expected)


def traced(name):
    senders, receivers, n_s, n_r = GRAPHS[name]
    build = lambda s, r: Graph(s, r, num_senders=n_s, num_receivers=n_r)
    return jax.jit(build)(jnp.asarray(senders), jnp.asarray(receivers))


def messages(graph, x):
    """A product with the graph, of ops that have tests of their own."""
    return scatter_add(gather(x, graph.senders), graph.receivers)


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_of_host_ids(device, name):
    graph = make(name)
    assert_joins(graph, *GRAPHS[name])
    assert not any(leaf.committed for leaf in jax.tree.leaves(graph))
    assert all(leaf.devices() == {device} for leaf in jax.tree.leaves(graph))
    expected = [make_plan(np.asarray(p.ids), p.num_rows, mode="drop") for p in ends(graph)]
    assert [(p.identity, p.no_long_row) for p in ends(graph)] == [
        (p.identity, p.no_long_row) for p in expected
    ]


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_of_traced_ids(device, name):
    graph = traced(name)
    assert_joins(graph, *GRAPHS[name])
    assert graph == make(name)
    assert jax.tree.structure(graph) == jax.tree.structure(make(name).generic)


def test_one_end_traced():
    senders, receivers, n_s, n_r = GRAPHS["dropped receivers"]
    plan = make_plan(receivers, n_r, mode="drop")
    expected = make("dropped receivers")
    for other in (receivers, plan):
        settings = {"num_senders": n_s, "num_receivers": n_r, "mode": "drop"}
        build = lambda s, other=other, settings=settings: Graph(s, other, **settings)
        assert_same_leaves(jax.jit(build)(jnp.asarray(senders)), expected)
    turned = lambda s: Graph(plan, s, num_senders=n_r, num_receivers=n_s, mode="drop")
    assert_same_leaves(jax.jit(turned)(jnp.asarray(senders)), expected.T)
    # The concrete end raises, the traced one drops.
    build = lambda s, r: Graph(s, r, num_senders=3, num_receivers=3)
    graph = jax.jit(lambda s: build(s, [0, 1, 2]))(jnp.asarray([0, 7, 2]))
    assert graph.receivers.ids.tolist() == [0, -1, 2]
    with pytest.raises(IndexError, match=r"got receivers\[1\] = 3\."):
        jax.jit(lambda s: build(s, [0, 3, 2]))(jnp.asarray([0, 1, 2]))


def test_narrow_and_wide_ids():
    for dtype in ("int8", "uint16", "int64", "uint64"):
        ids = np.array([3, 0, 2], dtype)
        graph = Graph(ids, ids[::-1], num_senders=4, num_receivers=4)
        assert_joins(graph, np.array([3, 0, 2]), np.array([2, 0, 3]), 4, 4)
    bad = np.array([0, 2**32, 1], np.int64)
    assert Graph(bad, [0, 1, 2], num_senders=2, num_receivers=3, mode="drop").receivers.ids[1] == -1


def test_plans_that_agree_are_kept():
    senders, receivers, n_s, n_r = GRAPHS["dropped at both ends"]
    gone = dropped(senders, receivers, n_s, n_r)
    plans = [
        make_plan(np.where(gone, -1, ids), n, mode="drop")
        for ids, n in ((senders, n_s), (receivers, n_r))
    ]
    for sizes in ({}, {"num_senders": n_s}, {"num_senders": n_s, "num_receivers": n_r}):
        graph = Graph(*plans, **sizes)
        assert graph.senders is plans[0]
        assert graph.receivers is plans[1]
    assert_joins(graph, senders, receivers, n_s, n_r)
    generic = Graph(plans[0].generic, plans[1])
    assert not generic.senders.no_long_row
    assert generic == graph
    same = Graph(plans[0], plans[0])
    assert same.senders is same.receivers


def test_plans_that_drop_different_edges_are_made_anew():
    senders, receivers, n_s, n_r = GRAPHS["dropped at both ends"]
    plans = make_plan(senders, n_s, mode="drop"), make_plan(receivers, n_r, mode="drop")
    assert_joins(Graph(*plans), senders, receivers, n_s, n_r)
    # Only the end that has to change does.
    senders, receivers, n_s, n_r = GRAPHS["dropped senders"]
    plans = make_plan(senders, n_s, mode="drop"), make_plan(receivers, n_r)
    graph = Graph(*plans)
    assert graph.senders is plans[0]
    assert graph.receivers is not plans[1]
    assert_joins(graph, senders, receivers, n_s, n_r)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_plan_and_ids(name):
    senders, receivers, n_s, n_r = GRAPHS[name]
    expected = make(name)
    plan = make_plan(senders, n_s, mode="drop")
    assert_same_leaves(Graph(plan, receivers, num_receivers=n_r, mode="drop"), expected)
    plan = make_plan(receivers, n_r, mode="drop")
    assert_same_leaves(Graph(senders, plan, num_senders=n_s, mode="drop"), expected)


@pytest.mark.parametrize("name", ["hubs", "dropped at both ends", "no edges"])
def test_traced_plans(name):
    senders, receivers, n_s, n_r = GRAPHS[name]
    plans = make_plan(senders, n_s, mode="drop"), make_plan(receivers, n_r, mode="drop")
    graph = jax.jit(Graph)(*plans)
    assert_joins(graph, *GRAPHS[name])
    # What is true of the given rows is true of those that lost edges.
    for made, given in zip(ends(graph), plans, strict=True):
        assert (made.identity, made.no_long_row) == (False, given.no_long_row)
    assert jax.jit(lambda p: Graph(p, plans[1]))(plans[0]) == graph


def test_ids_are_copied(monkeypatch):
    ids = np.array([2, 0, 1], np.int32)
    graph = Graph(ids, ids, num_senders=3, num_receivers=3)
    ids[:] = 0
    assert_joins(graph, np.array([2, 0, 1]), np.array([2, 0, 1]), 3, 3)
    # Even where another thread writes to them while they are sorted.
    ids[:] = [2, 0, 1]
    sort = jax_index._csr.from_ids

    def meddle(*arguments):
        ids[:] = 1
        return sort(*arguments)

    monkeypatch.setattr(jax_index._csr, "from_ids", meddle)
    graph = Graph(ids, ids, num_senders=3, num_receivers=3)
    assert_joins(graph, np.array([2, 0, 1]), np.array([2, 0, 1]), 3, 3)
    assert ids.tolist() == [1, 1, 1]


def test_a_graph_made_while_tracing_is_concrete():
    made = []

    def program(x):
        made.append(Graph([1, 0], [0, 1], num_senders=2, num_receivers=2))
        made.append(made[0].pad_to(3, 2, 4))
        made.append(made[0].sort_edges()[0])
        return messages(made[0], x)

    assert jax.jit(program)(jnp.array([1.0, 2.0])).tolist() == [2, 1]
    for graph in made:
        for leaf in jax.tree.leaves(graph):
            assert not isinstance(leaf, jax.core.Tracer)
            assert not leaf.committed


def test_sums_along_a_graph(device, rng):
    for name, (senders, receivers, n_s, n_r) in GRAPHS.items():
        x = cases.small_integers(rng, (n_s, 3), "float32")
        gone = dropped(senders, receivers, n_s, n_r)
        expected = np.zeros((n_r, 3), np.float32)
        np.add.at(expected, receivers[~gone], x[senders[~gone]])
        oracle.assert_same(messages(make(name), jnp.asarray(x)), expected)


@pytest.mark.parametrize("name", GRAPHS)
def test_turned(name):
    senders, receivers, n_s, n_r = GRAPHS[name]
    graph = make(name)
    assert_joins(graph.T, receivers, senders, n_r, n_s)
    for leaf, expected in zip(jax.tree.leaves(graph.T.T), jax.tree.leaves(graph), strict=True):
        assert leaf is expected


def test_both_views():
    graph = make("bipartite")
    assert graph.by_receiver == (graph.receivers, graph.sender_of)
    assert graph.by_receiver[1] is graph.sender_of
    assert graph.by_sender[0] is graph.senders
    assert graph.by_sender[1] is graph.receiver_of


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("name", GRAPHS)
def test_sorted_edges(name, where):
    senders, receivers, n_s, n_r = GRAPHS[name]
    graph = make(name)
    sort = lambda g: g.sort_edges()
    ordered, perm = sort(graph) if where == "host" else jax.jit(sort)(graph)
    gone = dropped(senders, receivers, n_s, n_r)
    expected = np.argsort(np.where(gone, n_r, receivers), kind="stable")
    np.testing.assert_array_equal(perm, expected)
    assert perm.dtype == jnp.int32
    assert_joins(ordered, senders[expected], receivers[expected], n_s, n_r)
    assert ordered.receivers.identity
    assert ordered.receivers.no_long_row == graph.receivers.no_long_row
    assert ordered.senders.no_long_row == graph.senders.no_long_row
    again, same = sort(ordered)
    assert again == ordered
    assert same.tolist() == list(range(len(senders)))


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("name", GRAPHS)
def test_padded(name, where):
    senders, receivers, n_s, n_r = GRAPHS[name]
    graph = make(name)
    for more, more_s, more_r in ((0, 0, 0), (1, 0, 2), (300, 5, 0)):
        sizes = len(senders) + more, n_s + more_s, n_r + more_r
        pad = lambda g, sizes=sizes: g.pad_to(*sizes)
        padded = pad(graph) if where == "host" else jax.jit(pad)(graph)
        none = np.full(more, -1)
        kept = ~dropped(senders, receivers, n_s, n_r)
        ids = [np.append(np.where(kept, i, -1), none) for i in (senders, receivers)]
        assert_joins(padded, *ids, *sizes[1:])
        for now, before in zip(ends(padded), ends(graph), strict=True):
            assert (now.identity, now.no_long_row) == (before.identity, before.no_long_row)
        if where == "host":
            assert not any(leaf.committed for leaf in jax.tree.leaves(padded))
    generic = graph.generic.pad_to(len(senders) + 1, n_s, n_r)
    assert jax.tree.structure(generic) == jax.tree.structure(generic.generic)


def test_a_jitted_function_is_traced_once_for_graphs_of_equal_sizes(rng):
    seen = []

    def product(graph, x):
        seen.append(graph)
        return messages(graph, x)

    call = jax.jit(product)
    x = jnp.asarray(cases.small_integers(rng, (20, 2), "float32"))
    for seed in range(3):
        senders, receivers, n, _ = _random(20, 20, 300, seed=seed)
        graph = Graph(senders, receivers, num_senders=n, num_receivers=n)
        expected = oracle.scatter_add(np.asarray(x)[senders], receivers, n)
        oracle.assert_same(call(graph, x), expected)
    assert len(seen) == 1
    in_order, _ = graph.sort_edges()
    call(in_order, x)
    assert len(seen) == 2
    call(graph.generic, x)
    oracle.assert_same(call(in_order.generic, x), expected)
    assert len(seen) == 3
    # As a static argument it is compared by content.
    call = jax.jit(product, static_argnums=0)
    for same in (graph, copy.deepcopy(graph), graph.generic):
        oracle.assert_same(call(same, x), expected)
    assert len(seen) == 4


def test_stacked_graphs_under_vmap_and_scan(device, rng):
    graphs = [
        Graph(s, r, num_senders=n_s, num_receivers=n_r).generic
        for s, r, n_s, n_r in (_random(11, 50, 300, seed=seed) for seed in range(3))
    ]
    x = jnp.asarray(cases.small_integers(rng, (3, 11, 2), "float32"))
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    assert isinstance(stack, Graph)
    assert stack.sender_of.shape == (3, 300)
    expected = [messages(g, each) for g, each in zip(graphs, x, strict=True)]
    oracle.assert_same(jax.vmap(messages)(stack, x), np.stack(expected))
    shared = [messages(g, x[0]) for g in graphs]
    oracle.assert_same(jax.vmap(messages, (0, None))(stack, x[0]), np.stack(shared))
    step = lambda carry, gx: (carry + 1, messages(*gx))
    oracle.assert_same(jax.lax.scan(step, 0, (stack, x))[1], np.stack(expected))
    # What a graph offers works on each of a batch.
    turned, ordered, padded = jax.vmap(lambda g: (g.T, g.sort_edges()[0], g.pad_to(301, 12, 50)))(
        stack
    )
    for k, graph in enumerate(graphs):
        pick = lambda tree, k=k: jax.tree.map(lambda leaf: leaf[k], tree)
        assert_same_leaves(pick(turned), graph.T)
        assert_same_leaves(pick(ordered), graph.sort_edges()[0])
        assert_same_leaves(pick(padded), graph.pad_to(301, 12, 50))


def test_ids_under_vmap_and_scan():
    batch = [_random(11, 50, 300, -1, -1, seed=seed) for seed in range(3)]
    senders, receivers = (jnp.asarray(np.stack([b[k] for b in batch])) for k in (0, 1))
    build = lambda s, r: Graph(s, r, num_senders=11, num_receivers=50)
    mapped = jax.vmap(build)(senders, receivers)
    scanned = jax.lax.scan(lambda c, ids: (c, build(*ids)), 0, (senders, receivers))[1]
    for stack in (mapped, scanned):
        for k, each in enumerate(batch):
            assert_joins(jax.tree.map(lambda leaf, k=k: leaf[k], stack), *each)


def test_a_graph_is_a_pytree_that_checks_nothing():
    graph = make("bipartite")
    leaves, tree = jax.tree.flatten(graph)
    assert [leaf.dtype for leaf in leaves] == [jnp.int32] * 10
    assert jax.tree.unflatten(tree, leaves) == graph
    assert jax.tree.map(lambda leaf: None, graph).sender_of is None
    odd = jax.tree.map(
        lambda plan: "a plan", graph, is_leaf=lambda v: isinstance(v, jax_index.IndexPlan)
    )
    assert (odd.senders, odd.sender_of) == ("a plan", "a plan")
    assert repr(odd) == "Graph(senders='a plan', receivers='a plan')"
    named = jax.tree_util.tree_flatten_with_path(graph)[0]
    assert [jax.tree_util.keystr(path) for path, _ in named] == [
        *(f".{end}.{leaf}" for end in FIELDS[:2] for leaf in ("ids", "indptr", "perm", "tasks")),
        ".sender_of",
        ".receiver_of",
    ]
    for (_, leaf), expected in zip(named, leaves, strict=True):
        assert leaf is expected
    other = Graph(*_random(11, 50, 300, seed=1)[:2], num_senders=11, num_receivers=50)
    assert jax.tree.structure(other) == tree
    assert hash(jax.tree.structure(other)) == hash(tree)
    assert jax.tree.structure(make("square")) != tree
    shapes = jax.eval_shape(lambda g: g.T, graph)
    assert shapes.senders.ids.shape == (300,)
    assert shapes.num_receivers == 11


def test_equality_and_hash_are_by_content(monkeypatch):
    graph = make("dropped at both ends")
    senders, receivers, n_s, n_r = GRAPHS["dropped at both ends"]
    gone = dropped(senders, receivers, n_s, n_r)
    same = [
        graph.generic,
        traced("dropped at both ends"),
        graph.T.T,
        Graph(
            np.where(gone, n_s, senders),
            receivers,
            num_senders=n_s,
            num_receivers=n_r,
            mode="drop",
        ),
    ]
    for other in same:
        assert other == graph
        assert hash(other) == hash(graph)
        assert other.digest == graph.digest
    assert len({graph, *same}) == 1
    for other in (
        graph.T,
        graph.pad_to(301, n_s, n_r),
        graph.pad_to(300, n_s + 1, n_r),
        graph.pad_to(300, n_s, n_r + 1),
        graph.sort_edges()[0],
        graph.receivers,
        None,
    ):
        assert other != graph
    hash(graph)
    monkeypatch.setattr(jax_index._graph, "joint_digest", lambda *_: pytest.fail("again"))
    assert hash(graph) == hash(graph.digest)


def test_copies_and_replacement():
    graph = make("square")
    hash(graph)
    assert copy.copy(graph) is graph
    holder = copy.deepcopy({"graph": graph, "again": graph})
    assert holder["graph"] is holder["again"]
    assert holder["graph"] is not graph
    assert holder["graph"] == graph
    assert_same_leaves(holder["graph"], graph)
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.senders = graph.receivers
    # The derived arrays follow.
    replaced = dataclasses.replace(graph, senders=graph.receivers)
    assert_same_leaves(replaced, Graph(graph.receivers, graph.receivers))


def test_repr_and_size():
    graph = Graph([0, 1, 1], [1, 0, 1], num_senders=2, num_receivers=2)
    assert repr(graph) == f"Graph(senders={graph.senders!r}, receivers={graph.receivers!r})"
    for name in GRAPHS:
        assert make(name).nbytes == sum(leaf.nbytes for leaf in jax.tree.leaves(make(name)))


def test_a_graph_takes_weak_references_and_is_freed():
    graph = make("square")
    call = jax.jit(messages)
    call(graph, jnp.ones(20)).block_until_ready()
    watched = [weakref.ref(graph), weakref.ref(graph.senders), weakref.ref(graph.sender_of)]
    del graph
    gc.collect()
    assert [reference() for reference in watched] == [None] * 3


def test_without_the_compiled_builder_the_graph_is_the_same(monkeypatch):
    made = {name: make(name) for name in GRAPHS}
    monkeypatch.setattr(jax_index._native.CPU, "module", None)
    for name, graph in made.items():
        assert_same_leaves(make(name), graph)
        assert jax.tree.structure(make(name)) == jax.tree.structure(graph)
