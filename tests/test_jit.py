# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Tracing and compiling: how often, from which kinds of arguments, ahead of time, from threads."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from functools import partial

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index

from . import cases, oracle

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: COMPILED.append(event) if "backend_compile" in event else None
)


@contextlib.contextmanager
def no_compilation():
    before = len(COMPILED)
    yield
    assert len(COMPILED) == before


def test_the_counter_of_compilations_counts():
    with pytest.raises(AssertionError), no_compilation():
        jax.jit(lambda v: v * 3.25)(jnp.ones(3)).block_until_ready()


def random_plans(rng, count, num_edges=50, num_rows=9):
    ids = rng.integers(0, num_rows, (count, num_edges))
    return ids, [jax_index.make_plan(each, num_rows) for each in ids]


class Traces:
    """A jitted function of a plan, and how often it was traced."""

    def __init__(self, **options):
        self.count = 0
        self.call = jax.jit(self.step, **options)

    def step(self, plan, y):
        self.count += 1
        return jax_index.scatter_add(y, plan)


def test_one_trace_for_all_plans_of_equal_sizes_and_flags(device, rng):
    ids, plans = random_plans(rng, 6)
    y = jnp.asarray(cases.values(rng, (50,), "float32"))
    traces = Traces()
    for each, plan in zip(ids, plans, strict=True):
        oracle.assert_same(traces.call(plan, y), oracle.scatter_add(y, each, 9))
    assert traces.count == 1
    # Another size is another program, and so are other flags; generic plans share one again.
    traces.call(jax_index.make_plan(ids[0], 10), y)
    assert traces.count == 2
    in_order = jax_index.make_plan(np.sort(ids[0]), 9)
    traces.call(in_order, y)
    assert traces.count == 3
    traces.call(in_order.generic, y)
    assert traces.count == 4
    traces.call(plans[1].generic, y)
    assert traces.count == 4


def test_a_gradient_is_traced_once_too(device, rng):
    _, plans = random_plans(rng, 4)
    count = []

    @jax.jit
    @jax.grad
    def step(x, plan):
        count.append(1)
        return (jax_index.scatter_add(jax_index.gather(x, plan), plan) ** 2).sum()

    for plan in plans:
        step(jnp.ones(9), plan)
    assert len(count) == 1


def test_a_plan_as_a_static_argument(device, rng):
    ids, plans = random_plans(rng, 2)
    y = jnp.asarray(cases.values(rng, (50,), "float32"))
    traces = Traces(static_argnums=0)
    for _ in range(2):
        oracle.assert_same(traces.call(plans[0], y), oracle.scatter_add(y, ids[0], 9))
    # Another object of equal content is no new program; other content is, and is not mixed up.
    oracle.assert_same(
        traces.call(jax_index.make_plan(ids[0], 9), y), oracle.scatter_add(y, ids[0], 9)
    )
    assert traces.count == 1
    oracle.assert_same(traces.call(plans[1], y), oracle.scatter_add(y, ids[1], 9))
    assert traces.count == 2
    changed = ids[0].copy()
    changed[-1] = (changed[-1] + 1) % 9
    oracle.assert_same(
        traces.call(jax_index.make_plan(changed, 9), y), oracle.scatter_add(y, changed, 9)
    )
    assert traces.count == 3


def test_a_plan_closed_over_and_bound_by_partial(device, rng):
    ids, (plan,) = random_plans(rng, 1)
    y = jnp.asarray(cases.values(rng, (50,), "float32"))
    expected = oracle.scatter_add(y, ids[0], 9)
    oracle.assert_same(jax.jit(lambda v: jax_index.scatter_add(v, plan))(y), expected)
    oracle.assert_same(jax.jit(partial(jax_index.scatter_add, plan=plan))(y), expected)
    bound = jax.tree_util.Partial(lambda p, v: jax_index.scatter_add(v, p), plan)
    oracle.assert_same(jax.jit(lambda f, v: f(v))(bound, y), expected)


def test_a_plan_made_inside_a_program_from_host_ids(device, rng):
    ids = rng.integers(0, 9, 50)
    y = jnp.asarray(cases.values(rng, (50,), "float32"))
    program = jax.jit(lambda v: jax_index.scatter_add(v, jax_index.make_plan(ids, 9)))
    oracle.assert_same(program(y), oracle.scatter_add(y, ids, 9))
    leaked = []
    jax.jit(lambda v: leaked.append(jax_index.make_plan(ids, 9)) or v)(y)
    oracle.assert_same(jax_index.scatter_add(y, leaked[0]), oracle.scatter_add(y, ids, 9))


def test_repeated_eager_calls_compile_nothing(device, rng):
    ids, plans = random_plans(rng, 5)
    x, y = jnp.ones((9, 2)), jnp.ones((50, 2))

    def everything(plan, raw):
        jax_index.gather(x, plan)
        jax_index.scatter_add(y, plan)
        jax_index.index_add(x, plan, y)
        jax_index.gather(x, raw, axis=0)
        jax_index.scatter_add(y, raw, num_rows=9)

    everything(plans[0], ids[0])
    with no_compilation():
        for plan, raw in zip(plans, ids, strict=True):
            everything(plan, raw)


def test_repeated_eager_gradients_compile_nothing(device, rng):
    _, plans = random_plans(rng, 3)
    x = jnp.ones((9, 2))
    gradient = lambda p: jax.grad(lambda v: jax_index.gather(v, p).sum())(x)
    gradient(plans[0])
    with no_compilation():
        for plan in plans:
            gradient(plan)


def test_a_call_with_a_plan_moves_nothing_between_host_and_device(device, rng):
    _, plans = random_plans(rng, 2)
    x = jnp.ones((9, 2))
    jax_index.gather(x, plans[0])
    with jax.transfer_guard("disallow"):
        jax.block_until_ready(jax_index.gather(x, plans[1]))


def test_ahead_of_time(device, rng):
    ids, plans = random_plans(rng, 2)
    y = jnp.asarray(cases.values(rng, (50, 3), "float32"))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), plans[0])
    lowered = jax.jit(jax_index.scatter_add).lower(jax.ShapeDtypeStruct(y.shape, y.dtype), shapes)
    compiled = lowered.compile()
    for each, plan in zip(ids, plans, strict=True):
        oracle.assert_same(compiled(y, plan), oracle.scatter_add(y, each, 9))
    with pytest.raises(TypeError):
        compiled(y, plans[0].generic)


def test_unused_workspace_is_no_output(device, rng):
    """Programs have the result alone: what kernels need besides is temporary memory."""
    ids, num_rows = cases.PATTERNS["edges of groups"]
    plan = jax_index.make_plan(ids, num_rows)
    compiled = jax.jit(jax_index.scatter_add).lower(jnp.ones((ids.size, 4)), plan).compile()
    memory = compiled.memory_analysis()
    if memory is None:
        pytest.skip("this back end reports no memory")
    assert memory.output_size_in_bytes <= num_rows * 4 * 4 + 64


def test_donated_operands(device):
    plan = jax_index.make_plan([0, 2, 0], 3)
    add = jax.jit(lambda x, y: jax_index.index_add(x, plan, y), donate_argnums=0)
    x = jnp.arange(3.0)
    for expected in ([2, 1, 3], [4, 1, 4], [6, 1, 5]):
        x = add(x, jnp.ones(3))
        assert x.tolist() == expected


def test_disabled_jit_and_leak_checking(device):
    plan = jax_index.make_plan([0, 2, 0], 3)
    x = jnp.asarray([1.0, 2.0, 4.0])

    def use():
        out = jax.jit(lambda v: jax_index.index_add(v, plan, jax_index.gather(v, plan)))(x)
        assert out.tolist() == [3, 2, 8]
        slope = jax.jit(jax.grad(lambda v: (jax_index.gather(v, [2, 2]) ** 2).sum()))(x)
        assert slope.tolist() == [0, 0, 16]
        batch = jax.vmap(lambda v: jax_index.scatter_add(v, plan))(jnp.stack([x, x]))
        assert batch.tolist() == [[5, 0, 2]] * 2

    with jax.disable_jit():
        use()
    with jax.checking_leaks():
        use()


def test_threads_may_call_one_program_at_once(device, rng):
    ids, plans = random_plans(rng, 4, 20_000, 300)
    y = jnp.asarray(cases.values(rng, (20_000, 3), "float32"))
    program = jax.jit(jax_index.scatter_add)
    expected = [oracle.scatter_add(y, each, 300) for each in ids]
    failures = []

    def work(k):
        try:
            for turn in range(10):
                which = (k + turn) % 4
                oracle.assert_same(program(y, plans[which]), expected[which])
                oracle.assert_same(jax_index.scatter_add(y, plans[which]), expected[which])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_many_independent_calls_in_one_program(device, rng):
    ids, plans = random_plans(rng, 32, 2000, 30)
    y = jnp.asarray(cases.values(rng, (2000, 2), "float32"))
    program = jax.jit(lambda y, plans: [jax_index.scatter_add(y, p) for p in plans])
    for out, each in zip(program(y, plans), ids, strict=True):
        oracle.assert_same(out, oracle.scatter_add(y, each, 30))


def test_inputs_of_every_layout(device, rng):
    x = np.asarray(cases.values(rng, (6, 8), "float32"))
    ids = np.array([1, 0, 3, 3])

    @jax.jit
    def program(x):
        return (
            jax_index.gather(x.T, ids),
            jax_index.gather(x[::2, 1:5], [2, 0], axis=0),
            jax_index.scatter_add(jnp.broadcast_to(x[0], (4, 8)), ids, num_rows=4),
            jax_index.scatter_add(x.reshape(4, 12)[::-1], ids, num_rows=4),
        )

    expected = (
        oracle.gather(x.T, ids),
        oracle.gather(x[::2, 1:5], [2, 0]),
        oracle.scatter_add(np.broadcast_to(x[0], (4, 8)), ids, 4),
        oracle.scatter_add(x.reshape(4, 12)[::-1], ids, 4),
    )
    for out, right in zip(program(jnp.asarray(x)), expected, strict=True):
        oracle.assert_same(out, right)


# A program names a plan that it closes over; who runs it keeps the plan.
EXPORTED = jax_index.make_plan([0, 2, 0], 3)


def exported_step(device):
    plan, allowed = EXPORTED, jax_index.export_checks()
    step = jax.jit(lambda v: jax_index.scatter_add(jax_index.gather(v, plan), plan))
    platform = "cpu" if device.platform == "cpu" else "cuda"
    return jax.export.export(step, platforms=[platform], disabled_checks=allowed)(jnp.ones(3))


def test_export(device):
    assert exported_step(device).call(jnp.asarray([1.0, 2.0, 4.0])).tolist() == [2, 0, 4]


def test_export_to_bytes_with_its_gradient(device):
    pytest.importorskip("flatbuffers")
    again = jax.export.deserialize(exported_step(device).serialize(vjp_order=1))
    assert again.call(jnp.asarray([1.0, 2.0, 4.0])).tolist() == [2, 0, 4]
    assert jax.grad(lambda v: again.call(v).sum())(jnp.ones(3)).tolist() == [2, 0, 1]


PERSISTENT = """
    import jax, jax.numpy as jnp, jax_index
    hits = []
    jax.monitoring.register_event_listener(
        lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
    jax.config.update("jax_compilation_cache_dir", {folder!r})
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    plan = jax_index.make_plan([0, 2, 0], 3)
    program = lambda: jax.jit(jax_index.scatter_add)(jnp.ones(3), plan).tolist()
    assert program() == [2, 0, 1]
    before = len(hits)
    jax.clear_caches()
    assert program() == [2, 0, 1]
    assert len(hits) > before, hits
"""


def test_the_persistent_cache(tmp_path):
    code = textwrap.dedent(PERSISTENT).format(folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
