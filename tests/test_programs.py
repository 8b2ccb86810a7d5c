# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""What programs keep, copy, share and trace: buffers, plans as arguments, remat, threads."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jax_index
from jax_index import Graph, _cache

from . import cases, oracle
from .test_transform_table import POLICIES, Case, calls, stack

M, N = 300, 40
DROP = {"mode": "drop"}


def draw_ids(rng, *lead):
    """Ids of rows short and long, some of them dropped."""
    ids = rng.integers(-1, N + 1, (*lead, M))
    ids[..., : M // 2] = 3
    return ids


# --- index_add in place ---------------------------------------------------------------------------


def assert_copies(device, compiled, shape, expected):
    """How many arrays of a shape a compiled program copies; on a GPU a copy may be fused."""
    wanted = f" = f32[{','.join(map(str, shape))}]"
    lines = [line for line in compiled.as_text().splitlines() if wanted in line]
    found = sum(" copy(" in line for line in lines)
    assert found == expected or (device.platform != "cpu" and found < expected)


@pytest.mark.parametrize("donated", [False, True], ids=["kept", "donated"])
def test_a_donated_operand_of_index_add_takes_the_sum(device, rng, donated):
    ids = draw_ids(rng)
    plan = jax_index.make_plan(ids, N, **DROP)
    given = cases.values(rng, (N, 6), "float32")
    x, y = jnp.asarray(given), jnp.asarray(cases.values(rng, (M, 6), "float32"))
    expected = oracle.index_add(given, np.asarray(y), ids)
    fn = jax.jit(jax_index.index_add, donate_argnums=0 if donated else ())
    compiled = fn.lower(x, plan, y).compile()
    assert_copies(device, compiled, x.shape, 0 if donated else 1)
    # Another address than that of the host array, which the CPU would share.
    x = x + 0
    before = x.unsafe_buffer_pointer()
    out = compiled(x, plan, y)
    oracle.assert_same(out, expected)
    assert (out.unsafe_buffer_pointer() == before) == donated
    assert x.is_deleted() == donated
    if not donated:
        oracle.assert_same(x, given + np.float32(0))


def test_index_add_keeps_what_a_program_still_needs(device, rng):
    """x afterwards, x as the edges too, and x shared by a batch."""
    ids = np.concatenate([[2, 2, -1], rng.integers(0, N, N - 3)])
    plan = jax_index.make_plan(ids, N, **DROP)
    given = cases.values(rng, (N, 5), "float32")
    ys = cases.values(rng, (3, N, 5), "float32")
    alone = oracle.index_add(given, given, ids)
    for donated in ((), (0,)):
        fresh = lambda: jnp.array(given)
        fn = jax.jit(lambda x: (jax_index.index_add(x, plan, x), x), donate_argnums=donated)
        out, same = fn(fresh())
        oracle.assert_same(out, alone)
        oracle.assert_same(same, given)
        fn = jax.jit(lambda x: jax_index.index_add(x, plan, x), donate_argnums=donated)
        oracle.assert_same(fn(fresh()), alone)
        twice = lambda x, y: jax_index.index_add(jax_index.index_add(x, plan, y), plan, x)
        expected = oracle.index_add(oracle.index_add(given, ys[0], ids), given, ids)
        oracle.assert_same(jax.jit(twice, donate_argnums=donated)(fresh(), ys[0]), expected)
        over = jax.jit(jax.vmap(lambda y, x: jax_index.index_add(x, plan, y), (0, None)))
        x = fresh()
        for out, y in zip(over(ys, x), ys, strict=True):
            oracle.assert_same(out, oracle.index_add(given, y, ids))
        oracle.assert_same(x, given)


def test_index_add_writes_into_no_constant(device, rng):
    """Neither into zeros nor into an array that the program was traced with."""
    ids = draw_ids(rng)
    plan = jax_index.make_plan(ids, N, **DROP)
    given, y = (cases.values(rng, (size, 6), "float32") for size in (N, M))
    x = jnp.array(given)
    fn = jax.jit(lambda y: [jax_index.index_add(v, plan, y) for v in (x, given, jnp.zeros_like(x))])
    expected = [oracle.index_add(v, y, ids) for v in (given, given, np.zeros_like(given))]
    for _ in range(3):
        for out, right in zip(fn(y), expected, strict=True):
            oracle.assert_same(out, right)
    oracle.assert_same(x, given)


def test_the_carry_of_a_loop_is_added_to_in_place(device, rng):
    ids = draw_ids(rng, 4)
    plans = stack([jax_index.make_plan(each, N, **DROP).generic for each in ids])
    ys = cases.values(rng, (4, M, 6), "float32")
    given = cases.values(rng, (N, 6), "float32")

    def run(x, plans, ys):
        step = lambda x, each: (jax_index.index_add(x, *each), None)
        return jax.lax.scan(step, x, (plans, ys))[0]

    expected = given
    for each, y in zip(ids, ys, strict=True):
        expected = oracle.index_add(expected, y, each)
    x = jnp.array(given)
    kept = jax.jit(run).lower(x, plans, ys).compile()
    donated = jax.jit(run, donate_argnums=0).lower(x, plans, ys).compile()
    assert_copies(device, kept, x.shape, 1)
    assert_copies(device, donated, x.shape, 0)
    oracle.assert_same(kept(x, plans, jnp.asarray(ys)), expected)
    oracle.assert_same(donated(x, plans, jnp.asarray(ys)), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int32", "complex64", "float8_e4m3fn", "int4"])
def test_index_add_in_place_of_other_element_types(device, rng, dtype):
    ids = draw_ids(rng)
    plan = jax_index.make_plan(ids, N, **DROP)
    x, y = cases.values(rng, (N, 3), dtype), cases.values(rng, (M, 3), dtype)
    expected = oracle.index_add(x, y, ids)
    for donated in ((), (0,)):
        fn = jax.jit(lambda x, y: jax_index.index_add(x, plan, y), donate_argnums=donated)
        given = jnp.array(x)
        oracle.assert_same(fn(given, jnp.asarray(y)), expected)
        if not donated:
            oracle.assert_same(given, x)


# --- Plans as arguments ---------------------------------------------------------------------------


def test_one_trace_for_each_padded_size(device, rng):
    """Ten topologies of any sizes in one bucket, then in three."""
    traces = []

    @jax.jit
    def run(plan, graph, y, x):
        traces.append((plan.num_edges, plan.num_rows))
        return jax_index.scatter_add(y, plan), jax_index.spmm(graph, x)

    def use(m, n, bucket):
        ids, senders = rng.integers(-1, n, m), rng.integers(0, n, m)
        edges, rows = bucket
        plan = jax_index.make_plan(ids, n, **DROP).pad_to(edges, rows).generic
        graph = Graph(senders, ids, num_senders=n, num_receivers=n, **DROP)
        graph = graph.pad_to(edges, rows, rows).generic
        y = cases.values(rng, (edges, 2), "float32")
        x = cases.values(rng, (rows, 2), "float32")
        summed, multiplied = run(plan, graph, y, x)
        oracle.assert_same(summed, oracle.scatter_add(y[:m], ids, rows))
        oracle.assert_same(multiplied, oracle.scatter_add(x[senders], ids, rows))

    for _ in range(10):
        use(int(rng.integers(20, 65)), int(rng.integers(5, 17)), (64, 16))
    assert traces == [(64, 16)]
    for bucket in ((128, 16), (128, 32), (64, 16)) * 2:
        use(int(rng.integers(20, 65)), int(rng.integers(5, 17)), bucket)
    assert traces == [(64, 16), (128, 16), (128, 32)]


def test_stacked_graphs_in_a_map_of_a_scan(device, rng):
    """A batch of sequences of graphs: vmap outside, scan inside, one call in the program."""
    ends = rng.integers(-1, 6, (2, 3, 2, 20))
    make = lambda e: Graph(*e, num_senders=6, num_receivers=6, **DROP).generic
    graphs = stack([stack([make(e) for e in row]) for row in ends])
    x = jnp.asarray(cases.small_integers(rng, (2, 6, 3), "float32"))
    step = lambda x, graph: (jax_index.spmm(graph, x), None)
    run = jax.vmap(lambda x, graphs: jax.lax.scan(step, x, graphs)[0])
    assert calls(run, x, graphs) == {"jax_index_spmm": 1}
    out = jax.jit(run)(x, graphs)
    for k, row in enumerate(ends):
        expected = x[k]
        for e in row:
            expected = jax_index.spmm(make(e), expected)
        oracle.assert_same(out[k], expected)


def test_a_donated_plan_gives_its_buffers_away(device, rng):
    """The next plan takes them: topologies that change on the device need no further memory."""

    def step(plan, shift):
        ids = jnp.where(plan.ids < 0, -1, (plan.ids + shift) % N)
        return jax_index.make_plan(ids, N, **DROP)

    ids = draw_ids(rng)
    expected = jax_index.make_plan(np.where((ids < 0) | (ids >= N), -1, (ids + 5) % N), N, **DROP)
    plan = jax.tree.map(jnp.array, jax_index.make_plan(ids, N, **DROP).generic)
    places = {leaf.unsafe_buffer_pointer() for leaf in plan.arrays}
    fn = jax.jit(step, donate_argnums=0)
    # What the program does not read, it does not take.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        moved = fn(plan, 2)
        again = fn(moved, 3)
    assert plan.ids.is_deleted()
    assert moved.ids.is_deleted()
    assert again == expected
    oracle.assert_same(again.perm, expected.perm)
    assert places & {leaf.unsafe_buffer_pointer() for leaf in again.arrays}


# --- remat ----------------------------------------------------------------------------------------

FORWARD = {
    "segment_max": {"segment_extremum": 1},
    "segment_softmax": {"segment_extremum": 1, "row_map": 1, "pointwise": 1},
    "graph_attention": {"sddmm": 1, "pointwise": 2, "segment_extremum": 1, "scatter_add": 1}
    | {"spmm": 1},
}


@pytest.mark.parametrize("op", FORWARD)
def test_a_policy_decides_what_is_computed_again(op):
    case = Case(op)

    def run(policy):
        def both(topology, arrays, ct):
            layer = lambda a: case.call(topology, *a)
            layer = layer if policy is None else jax.checkpoint(layer, policy=policy())
            return jax.vjp(layer, arrays)[1](ct)

        return calls(both, *case.first())

    once = run(None)
    twice = dict(once)
    for kernel, count in FORWARD[op].items():
        twice[f"jax_index_{kernel}"] += count
    for name, policy in POLICIES.items():
        assert run(policy) == (once if name == "everything_saveable" else twice), name


def test_what_is_offloaded_comes_back(device, rng):
    """The messages of each layer wait in the memory of the host; the bits are those of no remat."""
    graph = Graph(rng.integers(0, 9, 50), rng.integers(0, 9, 50), num_senders=9, num_receivers=9)
    x = jnp.asarray(rng.standard_normal((9, 2, 3)), jnp.float32)

    def layer(x, graph):
        scores = jax_index.sddmm(graph, x, x)
        scores = checkpoint_name(scores, "moved")
        return jax_index.spmm(graph, x, jax_index.edge_softmax(graph, scores))

    def back(layer):
        def step(x, _):
            return layer(x, graph), None

        run = lambda x: jax.lax.scan(step, x, length=3)[0]
        return lambda x, ct: jax.vjp(run, x)[1](ct)[0]

    kept = jax.checkpoint(layer, policy=POLICIES["offload"]())
    text = str(jax.make_jaxpr(back(kept))(x, x))
    assert "pinned_host" in text or "Host" in text
    oracle.assert_same(jax.jit(back(kept))(x, x), jax.jit(back(layer))(x, x))


# --- Threads --------------------------------------------------------------------------------------


def test_threads_call_with_raw_ids_at_once(device, rng, monkeypatch):
    """Eager and jitted, of few topologies: all meet in the one cache of ids, which overflows."""
    ids = draw_ids(rng, 6)
    y = jnp.asarray(cases.values(rng, (M, 3), "float32"))
    x = jnp.asarray(cases.values(rng, (N, 3), "float32"))
    # Room for two of the six plans.
    size = jax_index.make_plan(ids[0], N, **DROP).nbytes
    monkeypatch.setattr(_cache, "CACHE", _cache.PlanCache(max_bytes=5 * size // 2))
    expected = [
        (
            oracle.scatter_add(y, each, N),
            oracle.gather(x, each),
            oracle.index_add(np.asarray(x), np.asarray(y), each),
        )
        for each in ids
    ]

    def eager(ids):
        return (
            jax_index.scatter_add(y, ids, num_rows=N, **DROP),
            jax_index.gather(x, ids, **DROP),
            jax_index.index_add(x, ids, y, **DROP),
        )

    traced = jax.jit(eager)
    ways = [eager, lambda ids: eager(jnp.asarray(ids)), traced]
    failures, start = [], threading.Barrier(8)

    def work(k):
        try:
            start.wait()
            for turn, way in itertools.product(range(len(ids)), ways):
                which = (k + turn) % len(ids)
                for out, right in zip(way(ids[which]), expected[which], strict=True):
                    oracle.assert_same(out, right)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert len(_cache.CACHE) == 2


def test_threads_trace_programs_of_raw_ids_at_once(device, rng):
    """Concrete ids inside of a program: its trace asks the cache."""
    ids = draw_ids(rng, 3)
    y = jnp.asarray(cases.values(rng, (M, 3), "float32"))
    call = lambda each: lambda: jax_index.scatter_add(y, each, num_rows=N, **DROP)
    programs = [jax.jit(call(each)) for each in ids]
    outs, start = {}, threading.Barrier(6)

    def work(k):
        start.wait()
        outs[k] = programs[k % 3]()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(6):
        oracle.assert_same(outs[k], oracle.scatter_add(y, ids[k % 3], N))


def test_a_trace_outlives_its_ids_in_the_cache(device, rng, monkeypatch):
    """What is traced owns the plan until it is compiled, whatever the cache forgets."""
    first, second = draw_ids(rng, 2)
    size = jax_index.make_plan(first, N, **DROP).nbytes
    monkeypatch.setattr(_cache, "CACHE", _cache.PlanCache(max_bytes=3 * size // 2))
    y = jnp.asarray(cases.values(rng, (M, 3), "float32"))
    call = lambda ids: jax_index.scatter_add(y, ids, num_rows=N, **DROP)
    traced = jax.jit(lambda: call(first)).trace()
    call(second)
    gc.collect()
    oracle.assert_same(traced.lower().compile()(), oracle.scatter_add(y, first, N))
