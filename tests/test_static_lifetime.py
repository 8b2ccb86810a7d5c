# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Who keeps the arrays of static plans, and when they go."""

from __future__ import annotations

import copy
import gc
import threading
import time
import weakref

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import _cache, _store, primitives

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


def owners(digest):
    """The owners of a record by kind; None where there is no record."""
    gc.collect()
    return next((found.owners for found in jax_index.live_plans() if found.digest == digest), None)


def test_memory_comes_back(ids):
    plan = jax_index.make_plan(ids, N, mode="drop")
    digest = plan.digest
    assert owners(digest) is None
    static = plan.static
    assert owners(digest) == {"IndexPlan": 1, "StaticPlan": 1}
    step = jax.jit(lambda y, p: jax_index.scatter_add(y, p) + 0)
    y = jnp.ones(M)
    step(y, static)
    del static
    found = owners(digest)
    assert found == {"IndexPlan": 1, "program": found["program"]}
    del plan
    # The program alone keeps the arrays, and computes with them.
    assert set(owners(digest)) == {"program"}
    out = step(y, jax_index.make_plan(ids, N, mode="drop").static)
    assert out.shape == (N,)
    step.clear_cache()
    del step
    assert owners(digest) is None


def test_a_dropped_plan_can_be_rebuilt(ids):
    """Programs of before find the arrays of an equal plan, whoever made it."""
    step = jax.jit(lambda y, p: jax_index.scatter_add(y, p))
    y, results = values(M), []
    for _ in range(3):
        plan = jax_index.make_plan(ids, N, mode="drop")
        results.append(np.asarray(step(y, plan.static)))
        del plan
        gc.collect()
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


DERIVED = {
    "graph.T": lambda x, p, g: jax_index.spmm(g.T, jax_index.spmm(g, x)),
    "graph.generic": lambda x, p, g: jax_index.spmm(g.generic, x),
    "graph.pad_to": lambda x, p, g: jax_index.spmm(g.pad_to(M + 3, N, N), x),
    "graph of plans": lambda x, p, g: jax_index.spmm(jax_index.Graph(g.receivers, g.senders), x),
    "plan.generic": lambda x, p, g: jax_index.gather(x, p.generic),
    "plan.pad_to": lambda x, p, g: jax_index.gather(x, p.pad_to(M + 3, N)),
    "a copy": lambda x, p, g: jax_index.gather(x, copy.deepcopy(p)),
    "a tree map": lambda x, p, g: jax_index.gather(x, jax.tree.map(lambda leaf: leaf, p)),
    "made inside": lambda x, p, g: jax_index.gather(x, jax_index.make_plan(HOST_IDS, N)),
    "made inside, static": lambda x, p, g: jax_index.gather(
        x, jax_index.make_plan(HOST_IDS, N).static
    ),
    "static.sort_edges": lambda x, p, g: jax_index.spmm(g.static.sort_edges()[0], x),
}
HOST_IDS = np.arange(M) % 7


@pytest.mark.parametrize("name", DERIVED)
def test_what_a_traced_function_derives_lives_as_long_as_its_program(name, plan, graph):
    x, fn = values(N, 3), DERIVED[name]
    right = fn(x, plan, graph)
    program = jax.jit(lambda x: fn(x, plan, graph))
    gc.collect()
    oracle.assert_same(program(x), right)
    scanned = jax.lax.scan(lambda c, _: (c, fn(c, plan, graph)), x, None, length=2)[1][1]
    oracle.assert_same(scanned, right)
    traced = jax.make_jaxpr(lambda x: fn(x, plan, graph))(x)
    gc.collect()
    oracle.assert_same(jax.jit(jax.extend.core.jaxpr_as_fun(traced))(x)[0], right)


def test_a_solver_whose_operator_turns_the_graph(graph):
    normal = lambda v: 50 * v + jax_index.spmm(graph.T, jax_index.spmm(graph, v))
    b = values(N)
    solution = jax.scipy.sparse.linalg.cg(normal, b, maxiter=200, tol=1e-6)[0]
    np.testing.assert_allclose(normal(solution), b, atol=1e-3)


def test_plans_in_reference_cycles_are_collected_anywhere():
    """Python's collector runs inside of JAX, too: a plan that goes there must not call JAX."""

    class Cycle:
        pass

    for k in range(3000):
        cycle = Cycle()
        cycle.itself = cycle
        cycle.plan = jax_index.make_plan([k & 3, k >> 2 & 3, k >> 4 & 3], 4).static
        jnp.ones(2)
    del cycle
    gc.collect()


def test_arrays_are_freed_some_time_after_their_last_owner(ids):
    plan = jax_index.make_plan(ids, N, mode="drop")
    held = weakref.ref(plan.static._record.host[0])
    size = plan.nbytes
    del plan
    gc.collect()
    jax_index.live_plans()
    waiting = sum(remains.nbytes for remains in _store._WAITING)
    assert waiting >= size
    assert held() is not None
    _store.sweep(seconds=0)
    gc.collect()
    assert held() is None


def test_threads_that_make_and_drop_equal_plans(ids):
    y, right = values(M), oracle.scatter_add(values(M), ids, N)
    step = jax.jit(lambda y, p: jax_index.scatter_add(y, p))
    failed = []

    def work():
        try:
            for _ in range(40):
                found = step(y, jax_index.make_plan(ids, N, mode="drop").static)
                oracle.assert_same(found, right)
                jax_index.live_plans()
                _store.sweep(seconds=0)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_ids_that_the_cache_forgets_while_a_program_is_traced(monkeypatch):
    monkeypatch.setattr(_cache.CACHE, "max_bytes", 400)
    several = [np.array(v * 4) for v in ([0, 1, 2, 3], [3, 1, 2, 3], [3, 1, 0, 3])]
    gather = jax_index.gather
    program = jax.jit(lambda x: jnp.stack([gather(x, ids).sum() for ids in several]))
    assert program(jnp.arange(4.0)).tolist() == [ids.sum() for ids in several]


def test_only_the_array_that_is_read_is_copied(plan):
    static = plan.static
    compiled = jax.jit(lambda y: y[static.indptr[:5]]).lower(values(M)).compile()
    assert compiled.as_text().count("custom-call(") == 1
    assert static.indptr.tolist() == plan.indptr.tolist()


def test_arrays_that_somebody_deleted(ids):
    plan = jax_index.make_plan(ids, N, mode="drop")
    static, right = plan.static, np.asarray(plan.perm)
    for leaf in plan.arrays:
        leaf.delete()
    assert jax_index.live_plans()
    np.testing.assert_array_equal(static.perm, right)


def test_one_record_for_equal_plans(ids):
    plans = [jax_index.make_plan(ids, N, mode="drop") for _ in range(3)]
    statics = [plan.static for plan in plans]
    listed = [found for found in jax_index.live_plans() if found.digest == plans[0].digest]
    assert len(listed) == 1
    assert listed[0].owners == {"IndexPlan": 3, "StaticPlan": 3}
    assert sum(listed[0].nbytes.values()) >= plans[0].nbytes
    assert listed[0].name == repr(plans[0])
    assert len({id(static._record) for static in statics}) == 1


PULLED = {
    "closed over": lambda p, g: jax.jit(lambda x: jax_index.gather(jnp.sin(x), p) ** 2),
    "an argument": lambda p, g: lambda x: jax.jit(
        lambda x, p: jax_index.segment_softmax(jax_index.gather(x, p), p)
    )(x, p),
    "of a graph": lambda p, g: jax.jit(
        lambda x: jax_index.spmm(g, x, jax_index.edge_softmax(g, jax_index.sddmm(g, x, x)))
    ),
    "fused": lambda p, g: jax.jit(
        lambda x: jax_index.graph_attention(g, *[x.reshape(N, 1, 3) * k for k in (1, 2, 3)])
    ),
    "every mode": lambda p, g: jax.jit(lambda x: primitives.gather(jnp.sin(x), p) ** 2),
    "checkpoint": lambda p, g: jax.checkpoint(lambda x: jax_index.gather(jnp.sin(x), p) ** 2),
    "a gradient": lambda p, g: jax.jit(
        jax.grad(lambda x: (jax_index.gather(jnp.sin(x), p) ** 2).sum())
    ),
}


@pytest.mark.parametrize("name", PULLED)
def test_a_backward_function_keeps_what_it_will_name(device, name, ids):
    """It is traced when it is called: nobody else may have the plan by then."""
    x, of_graph = values(N, 3), name in ("of a graph", "fused")

    def backward(form):
        plan = jax_index.make_plan(ids, N, mode="drop")
        graph = jax_index.Graph(ids[::-1], ids, num_senders=N, num_receivers=N, mode="drop")
        digests.append(graph.senders.digest if of_graph else plan.digest)
        return jax.vjp(PULLED[name](form(plan), form(graph)), x)

    digests = []
    for static in (False, True):
        out, back = backward(lambda made, static=static: made.static if static else made)
        gc.collect()
        _store.sweep(seconds=0)
        # The arrays of a plan that is an argument are saved as they are.
        assert owners(digests[0]) or (name == "an argument" and not static)
        found = back(jnp.cos(out))[0]
        eager = jax_index.make_plan(ids, N, mode="drop")
        graph = jax_index.Graph(ids[::-1], ids, num_senders=N, num_receivers=N, mode="drop")
        right = jax.vjp(PULLED[name](eager, graph), x)[1](jnp.cos(out))[0]
        oracle.assert_same(found, right)
        del back, eager, graph
        # jax 0.8 keeps what it transposed of a jitted function, whatever becomes of that.
        assert owners(digests[0]) is None or jax.__version_info__ < (0, 9)


EVERY_MODE = {
    "a program": lambda f, x: jax.jit(f)(x),
    "a tangent": lambda f, x: jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(x),
    "linearize": lambda f, x: jax.linearize(jax.jit(f), x)[1](x),
    "a batch of gradients": lambda f, x: jax.jit(jax.vmap(jax.grad(f)))(jnp.stack([x, x])),
    "a product with the Hessian": lambda f, x: jax.jit(
        lambda x: jax.jvp(jax.grad(f), (x,), (x,))[1]
    )(x),
}


@pytest.mark.parametrize("name", EVERY_MODE)
def test_derivatives_in_every_mode_keep_no_plan(device, name, ids):
    """Equal calls of primitives share their traces, as long as a program has them."""

    def use():
        plan = jax_index.make_plan(ids, N, mode="drop")
        graph = jax_index.Graph(ids[::-1], ids, num_senders=N, num_receivers=N, mode="drop")

        def loss(x):
            out = primitives.spmm(graph, x, primitives.edge_softmax(graph, jnp.ones(M)))
            return (primitives.segment_softmax(primitives.gather(out, plan), plan) ** 2).sum()

        jax.block_until_ready(EVERY_MODE[name](loss, values(N, 3)))
        return plan.digest, graph.senders.digest

    assert [owners(digest) for digest in use()] == [None, None]


def use_memory(device, nbytes):
    """Write over what was freed: whoever still reads it there computes nonsense."""
    for _ in range(4):
        jax.block_until_ready(jax.device_put(jnp.full(nbytes // 4, 2**30, jnp.int32), device))


# On a GPU XLA captures five launches in a row, or more, as one graph and replays that: kernels keep
# the addresses of the capture. The same steps run on the CPU.
@pytest.mark.parametrize("steps", [1, 8])
def test_equal_plans_come_and_go_beside_a_program(device, ids, steps):
    """It is run, and captured, with the first; it and new programs run on with the next ones."""
    traces = []

    def program():
        def step(y, p):
            traces.append(1)
            for _ in range(steps):
                rows = jax_index.scatter_add(jnp.sin(y), p)
                y = jax_index.gather(rows, p, lowering="kernel")
            return jax_index.scatter_add(y, p)

        return jax.jit(step)

    def closed_over(p):
        return jax.jit(lambda y: program()(y, p)).lower(y).compile()

    made = lambda: jax_index.make_plan(ids, N, mode="drop")
    listed = lambda digest: [each for each in jax_index.live_plans() if each.digest == digest]
    y, step = values(M, 3), program()
    plans = [made()]
    plans.append(plans[0].static)
    digest = plans[0].digest
    right, closed = np.asarray(program()(y, plans[0])), closed_over(plans[1])
    traces.clear()
    for _ in range(3):
        oracle.assert_same(step(y, plans[1]), right)
        oracle.assert_same(closed(y), right)
    (before,) = listed(digest)
    for _ in range(2):
        plans.clear()
        gc.collect()
        _store.sweep(seconds=0)
        # Programs alone own the arrays now, where they were.
        assert set(owners(digest)) == {"program"}
        use_memory(device, max(before.nbytes.values()))
        oracle.assert_same(closed(y), right)
        plans.append(made())
        plans.append(plans[0].static)
        oracle.assert_same(step(y, plans[1]), right)
        oracle.assert_same(program()(y, plans[1]), right)
        oracle.assert_same(closed_over(plans[1])(y), right)
        oracle.assert_same(closed(y), right)
        (after,) = listed(digest)
        # However many programs and plans, there is one copy, in its place.
        assert after.nbytes == before.nbytes
        assert after.nbytes[str(plans[0].ids.device)] == plans[0].nbytes
        assert after.owners["IndexPlan"] == after.owners["StaticPlan"] == 1
        assert after.owners["program"] > 1
    # One trace of the first, and one of each fresh program.
    assert len(traces) == 5
    plans.clear()
    del step, closed
    assert owners(digest) is None
    _store.sweep(seconds=0)
    use_memory(device, max(before.nbytes.values()))
    oracle.assert_same(program()(y, made().static), right)
