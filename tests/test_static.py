# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Static plans: programs that name a plan, who keeps its arrays, and what becomes of them."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
import textwrap
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index

from . import oracle

M, N = 700, 40


@pytest.fixture
def ids():
    """Ids of this test alone, so that no other test's programs keep their plan."""
    rng = np.random.default_rng(time.time_ns())
    return np.concatenate([rng.integers(-1, N + 1, M - 200), np.full(200, 3)])


@pytest.fixture
def plan(ids):
    return jax_index.make_plan(ids, N, mode="drop")


@pytest.fixture
def graph(ids):
    return jax_index.Graph(ids[::-1], ids, num_senders=N, num_receivers=N, mode="drop")


def values(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))


def text_of(fn, *arguments):
    return jax.jit(fn).lower(*arguments).as_text()


def longest_constant(text):
    """Bytes of the largest array of integers that a program's text carries."""
    shapes = re.findall(r"constant dense<[^>]*> : tensor<([0-9x]*)x?i(?:32|64)>", text)
    sizes = [np.prod([int(d) for d in shape.split("x") if d], dtype=int) for shape in shapes]
    return 4 * max(sizes, default=0)


def test_a_static_plan_is_a_leafless_node_and_equals_its_plan(plan):
    static = plan.static
    assert jax.tree.leaves(static) == []
    assert jax.tree.map(lambda leaf: leaf, static) == static == plan
    assert hash(static) == hash(plan)
    assert static != jax_index.make_plan(np.zeros(M, int), N)
    assert static.static is static
    for name in ("ids", "indptr", "perm", "tasks"):
        np.testing.assert_array_equal(getattr(static, name), getattr(plan, name))
    for name in ("num_rows", "num_edges", "identity", "no_long_row", "nbytes", "digest"):
        assert getattr(static, name) == getattr(plan, name), name
    assert type(static.generic) is jax_index.StaticPlan
    assert (static.generic.identity, static.generic.no_long_row) == (False, False)
    assert static.pad_to(M + 5, N + 1) == plan.pad_to(M + 5, N + 1)
    assert repr(static).startswith(f"StaticPlan(digest='{plan.digest}', num_edges=700")


def test_a_static_graph_likewise(graph):
    static = graph.static
    assert jax.tree.leaves(static) == []
    assert jax.tree.map(lambda leaf: leaf, static) == static == graph
    for one, other in ((static, graph), (static.T, graph.T), (static.generic, graph.generic)):
        assert type(one) is jax_index.StaticGraph
        assert one == other
        for name in ("sender_of", "receiver_of"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert one.receivers.identity == other.receivers.identity
    ordered, perm = static.sort_edges()
    assert ordered == graph.sort_edges()[0]
    np.testing.assert_array_equal(perm, graph.sort_edges()[1])
    assert static.pad_to(M + 1, N, N) == graph.pad_to(M + 1, N, N)


def test_copies_pickles_and_files(plan, graph, tmp_path):
    for static in (plan.static, graph.static):
        for again in (copy.copy(static), copy.deepcopy(static), pickle.loads(pickle.dumps(static))):
            assert type(again) is type(static)
            assert again == static
        static.save(tmp_path / "file.npz")
        assert type(static).__mro__[1].load(tmp_path / "file.npz") == static


OPS = {
    "gather": lambda data, p, g: jax_index.gather(data["nodes"], p, lowering="kernel"),
    "native gather": lambda data, p, g: jax_index.gather(data["nodes"], p, lowering="native"),
    "scatter_add": lambda data, p, g: jax_index.scatter_add(data["edges"], p),
    "index_add": lambda data, p, g: jax_index.index_add(data["nodes"], p, data["edges"]),
    **{
        name: lambda data, p, g, name=name: getattr(jax_index, name)(data["edges"], p)
        for name in jax_index.__all__
        if name.startswith("segment_")
    },
    "spmm": lambda data, p, g: jax_index.spmm(g, data["nodes"], data["edges"][:, 0]),
    "sddmm": lambda data, p, g: jax_index.sddmm(g, data["nodes"], data["q"]),
    "edge_softmax": lambda data, p, g: jax_index.edge_softmax(g, data["edges"]),
    "graph_attention": lambda data, p, g: jax_index.graph_attention(
        g, *[data[name].reshape(N, 2, 2) for name in ("q", "k", "nodes")]
    ),
    "gat_attention": lambda data, p, g: jax_index.gat_attention(
        g, *[data[name].reshape(N, 2, 2) for name in ("k", "q")], jnp.ones((2, 2)), version=2
    ),
}


@pytest.mark.parametrize("op", OPS)
def test_every_op_takes_one_and_gives_the_same_bits(op, plan, graph):
    # An array for each operand: the sum over several uses of one is JAX's.
    data = {name: values(N, 4) + k for k, name in enumerate(("nodes", "q", "k"))}
    data["edges"] = values(M, 4)
    fn = OPS[op]
    gradient = lambda p, g: jax.grad(lambda d: (fn(d, p, g) ** 2).sum())(data)
    right = jax.jit(fn)(data, plan, graph), jax.jit(gradient)(plan, graph)
    statics = plan.static, graph.static
    found = {
        "argument": (jax.jit(fn)(data, *statics), jax.jit(gradient)(*statics)),
        "closed over": (
            jax.jit(lambda d: fn(d, *statics))(data),
            jax.jit(lambda: gradient(*statics))(),
        ),
        "promoted": (
            jax.jit(lambda d: fn(d, plan, graph))(data),
            jax.jit(lambda: gradient(plan, graph))(),
        ),
        "eager": (fn(data, *statics), jax.jit(gradient)(plan, graph)),
    }
    for name, (out, grads) in found.items():
        oracle.assert_same(out, right[0], name)
        for key in data:
            oracle.assert_same(grads[key], right[1][key], name)
    for text in (
        text_of(fn, data, *statics),
        text_of(lambda d: fn(d, plan, graph), data),
        text_of(gradient, *statics),
        text_of(lambda: gradient(plan, graph)),
    ):
        assert longest_constant(text) < 1000
        assert 'static = "' in text


class Layer:
    """A module of a third party: a pytree that holds a static plan among its weights."""

    def __init__(self, weight, plan):
        self.weight, self.plan = weight, plan


jax.tree_util.register_pytree_node(
    Layer, lambda layer: ((layer.weight, layer.plan), None), lambda _, parts: Layer(*parts)
)

BOUNDARIES = {
    "inner jit": lambda x, p: jax.jit(jax_index.gather)(x, p),
    "checkpoint": lambda x, p: jax.checkpoint(jax_index.gather)(x, p),
    "scan": lambda x, p: jax.lax.scan(
        lambda c, _: (c + jax_index.scatter_add(jax_index.gather(c, p), p), None), x, None, 2
    )[0],
    "carried by scan": lambda x, p: jax.lax.scan(
        lambda c, _: ((jax_index.scatter_add(jax_index.gather(c[0], c[1]), c[1]), c[1]), None),
        (x, p),
        None,
        length=2,
    )[0][0],
    "cond": lambda x, p: jax.lax.cond(
        x[0, 0] > 9, lambda x, p: x, lambda x, p: jax_index.index_add(x, p, jnp.ones((M, 3))), x, p
    ),
    "vmap": lambda x, p: jax.vmap(lambda c: jax_index.gather(c, p), 1)(x),
    "module": lambda x, p: jax.grad(lambda m: jax_index.gather(x * m.weight, m.plan).sum())(
        Layer(jnp.float32(2), p)
    ).weight,
}


def _squares():
    @jax.custom_vjp
    def squares(x, p):
        return jax_index.gather(x, p) ** 2

    squares.defvjp(
        lambda x, p: (squares(x, p), (x, p)),
        lambda saved, ct: (
            jax_index.scatter_add(2 * ct * jax_index.gather(*saved), saved[1]),
            None,
        ),
    )
    return squares


BOUNDARIES["custom_vjp"] = _squares()
# A module with the integer leaves of a plan has no gradient: the same without a module.
WITH_LEAVES = {
    "module": lambda x, p: jax.grad(lambda w: jax_index.gather(x * w, p).sum())(jnp.float32(2))
}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_it_stays_static_through(name, plan):
    fn, x = BOUNDARIES[name], values(N, 3)
    plain = WITH_LEAVES.get(name, fn)
    for made in (fn, lambda x, p: jax.grad(lambda x: (fn(x, p) ** 2).sum())(x)):
        text = text_of(made, x, plan.static)
        assert longest_constant(text) < 1000
        assert not re.search(r"tensor<700xi32>", text.split("{", 2)[1].partition(")")[0])
        assert 'static = "' in text
    pair = [lambda x, p: fn(x, plan.static), plain]
    oracle.assert_same(*[jax.jit(f)(x, plan) for f in pair])
    gradients = [jax.grad(lambda x, p, f=f: (f(x, p) ** 2).sum()) for f in pair]
    oracle.assert_same(*[jax.jit(gradient)(x, plan) for gradient in gradients])


def test_the_text_does_not_grow_with_the_edges():
    sizes = []
    for m in (2_000, 200_000):
        plan = jax_index.make_plan(np.arange(m) % 7, 7)
        step = lambda y, plan=plan: jax_index.gather(
            jax_index.scatter_add(y, plan), plan, lowering="kernel"
        )
        sizes.append(len(text_of(step, jnp.ones(m))))
    assert abs(sizes[1] - sizes[0]) < 60


def test_kernels_copy_nothing(plan):
    """The compiled program calls the kernel alone: the arrays are not written to any buffer."""
    compiled = jax.jit(lambda y: jax_index.scatter_add(y, plan)).lower(values(M, 3)).compile()
    text = compiled.as_text()
    assert text.count("custom-call(") == 1
    assert "static_arrays" not in text


def test_traces_are_counted_by_content(ids):
    traces = []
    step = jax.jit(lambda y, p: (traces.append(1), jax_index.scatter_add(y, p))[1])
    y = values(M)
    for _ in range(2):
        step(y, jax_index.make_plan(ids, N, mode="drop").static)
    assert len(traces) == 1
    other = jax_index.make_plan(ids[::-1], N, mode="drop").static
    oracle.assert_same(step(y, other), oracle.scatter_add(y, ids[::-1], N))
    assert len(traces) == 2


def test_eager_calls_compile_nothing_for_a_plan(plan, ids):
    y, events = values(M), []
    jax_index.scatter_add(y, plan)
    others = [jax_index.make_plan(np.roll(ids, k), N, mode="drop").static for k in (1, 2)]
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: events.append(name) if "compile" in name else None
    )
    for other in others:
        jax_index.scatter_add(y, other)
    assert not events
    jax.jit(lambda y: jax_index.scatter_add(y, others[0]))(y)
    assert events, "the listener listens"


UNKNOWN = """
    import sys, jax, jax.export, jax.numpy as jnp, jax_index
    folder, what = sys.argv[1:]
    exported = jax.export.deserialize(open(f"{folder}/program", "rb").read())
    if what == "loaded":
        plan = jax_index.IndexPlan.load(f"{folder}/plan.npz").static
    print(exported.call(jnp.ones(3)).tolist())
"""


def test_a_program_that_meets_an_unknown_plan(tmp_path):
    pytest.importorskip("flatbuffers")
    plan = jax_index.make_plan([0, 2, 0], 3)
    step = jax.jit(lambda y: jax_index.scatter_add(y, plan))
    allowed = jax_index.export_checks()
    exported = jax.export.export(step, platforms=["cpu"], disabled_checks=allowed)(jnp.ones(3))
    (tmp_path / "program").write_bytes(exported.serialize())
    plan.save(tmp_path / "plan.npz")
    run = lambda what: subprocess.run(
        [sys.executable, "-c", textwrap.dedent(UNKNOWN), str(tmp_path), what],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert run("loaded").stdout.strip() == "[2.0, 0.0, 1.0]"
    failed = run("nothing")
    assert failed.returncode != 0
    expected = (
        "jax_index.scatter_add: static plan must be known to this process, got the digest "
        f"{plan.digest} of a plan that is not; load it before the program runs and keep it: "
        "plan = jax_index.IndexPlan.load(path).static, or jax_index.Graph.load(path).static."
    )
    assert expected in failed.stderr


def test_errors(plan, graph):
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), plan)
    op = r"^jax_index\.IndexPlan\.static: "
    with pytest.raises(TypeError, match=op + "ids must be an int32 array"):
        _ = stacked.static
    with pytest.raises(TypeError, match=op + "self must be concrete"):
        jax.jit(lambda p: p.static)(plan)
    turned = jax.tree.map(lambda leaf: leaf[::-1], plan)
    expected = (
        r"self must be as it was made, got arrays that do not belong to its ids\. "
        r"Make it anew from its ids\.$"
    )
    with pytest.raises(ValueError, match=op + expected):
        _ = turned.static
    mirrored = graph.senders, graph.receivers, graph.receiver_of, graph.sender_of
    with pytest.raises(ValueError, match=r"^jax_index\.Graph\.static: " + expected):
        _ = jax_index.Graph._of(*mirrored).static
    nobody = jax_index.StaticPlan(plan.static.key._replace(digest="0" * 32), None)
    expected = r"^jax_index\.StaticPlan: self must be known to this process, got StaticPlan\("
    with pytest.raises(ValueError, match=expected + r".*Load it first and keep it: "):
        jax_index.scatter_add(jnp.ones(M), nobody)


def test_what_a_tree_map_made_of_a_plan_is_not_promoted(plan):
    """Its arrays are not those of its ids: the program computes with what it is given."""
    turned = type(plan)(plan.ids, plan.indptr, plan.perm[::-1], plan.tasks, N, M, False, False)
    y = values(M)
    program = jax.jit(lambda y: jax_index.scatter_add(y, turned))
    oracle.assert_same(program(y), jax.jit(jax_index.scatter_add)(y, turned))


def test_equinox_and_nnx_modules(plan):
    equinox = pytest.importorskip("equinox")
    nnx = pytest.importorskip("flax.nnx")

    class Eqx(equinox.Module):
        weight: jax.Array
        plan: jax_index.StaticPlan

        def __call__(self, x):
            return jax_index.gather(x * self.weight, self.plan).sum()

    class Nnx(nnx.Module):
        def __init__(self):
            self.weight = nnx.Param(jnp.float32(2))
            self.plan = plan.static

        def __call__(self, x):
            return jax_index.gather(x * self.weight[...], self.plan).sum()

    x = values(N, 3)
    right = jax.grad(lambda w: jax_index.gather(x * w, plan).sum())(jnp.float32(2))
    loss = lambda module, x: module(x)
    grads = equinox.filter_jit(equinox.filter_grad(loss))(Eqx(jnp.float32(2), plan.static), x)
    np.testing.assert_allclose(grads.weight, right, rtol=1e-5)
    grads = nnx.jit(nnx.grad(loss))(Nnx(), x)
    np.testing.assert_allclose(grads["weight"][...], right, rtol=1e-5)
