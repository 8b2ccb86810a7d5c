# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Plans in programs: one copy for all of them, no work for a hash, and meshes of any kind."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jax_index
from jax_index import _ids, _plan

from . import oracle

M, N = 1_000_000, 1000


def layer(x, plan):
    return jax_index.segment_sum(jax_index.gather(jnp.sin(x), plan, lowering="kernel"), plan)


def looped(x, plan):
    return jax.lax.scan(lambda c, _: (layer(c, plan), None), x, length=3)[0]


def test_programs_of_a_large_plan_are_small_and_share_its_arrays(device, rng):
    """Closed over, as an argument, in a loop: no program has a copy, nor a text that grows."""
    ids = rng.integers(0, N, M)
    plan, small = jax_index.make_plan(ids, N), jax_index.make_plan(ids[:1000], N)
    x = jnp.asarray(rng.integers(-3, 4, N), jnp.float32)
    forms = {
        "closed over": lambda p: jax.jit(lambda x: layer(x, p)).lower(x),
        "in a loop": lambda p: jax.jit(lambda x: looped(x, p)).lower(x),
        "its gradient": lambda p: jax.jit(jax.grad(lambda x: looped(x, p).sum())).lower(x),
        "static argument": lambda p: jax.jit(looped).lower(x, p.static),
        "argument": lambda p: jax.jit(looped).lower(x, p),
    }
    lowered = {name: form(plan) for name, form in forms.items()}
    for name, form in forms.items():
        assert abs(len(lowered[name].as_text()) - len(form(small).as_text())) < 2000, name
    programs = {name: each.compile() for name, each in lowered.items()}
    for name, program in programs.items():
        memory = program.memory_analysis()
        if memory is None:  # a back end that reports none
            continue
        # The messages of a step are 4 m bytes; a copy of any array of the plan were as much again.
        held = memory.generated_code_size_in_bytes + memory.output_size_in_bytes
        assert held < M, name
        argument = memory.argument_size_in_bytes
        assert argument > plan.nbytes if name == "argument" else argument < M, name
        assert memory.temp_size_in_bytes < 5 * M, name
    oracle.assert_same(programs["in a loop"](x), programs["argument"](x, plan))
    oracle.assert_same(programs["static argument"](x, plan.static), programs["in a loop"](x))
    gc.collect()
    (record,) = [found for found in jax_index.live_plans() if found.digest == plan.digest]
    assert record.nbytes[str(plan.ids.device)] == plan.nbytes
    assert record.owners["program"] >= 4


def test_a_plan_is_hashed_once_and_copied_when_it_is_made(device, rng, monkeypatch):
    ids = rng.integers(0, 9, 50)
    plan, again = jax_index.make_plan(ids, 9), jax_index.make_plan(ids.copy(), 9)
    expected, y = oracle.scatter_add(np.ones(50, "f"), ids, 9), jnp.ones(50)
    traces = []

    def step(plan, y):
        traces.append(1)
        return jax_index.scatter_add(y, plan)

    by_number = jax.jit(step, static_argnums=0)
    by_name = jax.jit(step, static_argnames="plan")
    held = jax.jit(lambda module, y: step(module["plan"], y) * module["w"])
    call = lambda p: (
        by_number(p, y),
        by_name(plan=p, y=y),
        held({"plan": p.static, "w": jnp.float32(1)}, y),
    )
    for out in call(plan):
        oracle.assert_same(out, expected)
    # What the ids were sorted from is the caller's again.
    ids[:] = 0
    call(again)
    assert len(traces) == 3
    # From now on neither plan looks at its ids.
    nothing = lambda *_, **__: 1 / 0
    monkeypatch.setattr(_plan.hashlib, "blake2b", nothing)
    monkeypatch.setattr(_ids, "host_ids", nothing)
    for p in (plan, again):
        for out in call(p):
            oracle.assert_same(out, expected)
    assert plan == again
    assert len({plan, again, plan.static, again.static}) == 1
    assert len(traces) == 3
    monkeypatch.undo()
    for out in call(jax_index.make_plan(ids, 9)):
        oracle.assert_same(out, np.eye(1, 9, dtype=np.float32)[0] * 50)
    assert len(traces) == 6


def test_meshes_without_devices_loops_of_a_shard_map_and_out_sharding():
    program = Path(__file__).with_name("mesh_program.py")
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) == 67
    assert {name for name, right in found.items() if not right} == set()


PERSISTENT = """
    import json, sys, jax, jax.numpy as jnp, numpy as np, jax_index
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    events = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    ids = np.array([0, 2, 0, 1])
    plan = jax_index.make_plan(ids, 3)
    graph = jax_index.Graph(ids % 3, ids, num_senders=3, num_receivers=3)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    x = jnp.arange(12.0).reshape(3, 2, 2)
    net = lambda x, g: (jax_index.graph_attention(g, x, x, x) ** 2).sum()
    where = dict(mesh=mesh, in_specs=P(None, "d"), out_specs=P(None, "d"))
    programs = {
        "static argument": lambda: jax.jit(jax.grad(net))(x, graph.static),
        "closed over": lambda: jax.jit(lambda x: jax_index.gather(x, plan))(x),
        "argument": lambda: jax.jit(jax_index.gather)(x, plan),
        "shard_map": lambda: jax.jit(
            jax.shard_map(jax.grad(lambda x: net(x, graph.static)), **where)
        )(jax.device_put(x, NamedSharding(mesh, P(None, "d")))),
    }
    found = {}
    for name, program in programs.items():
        del events[:]
        out = np.asarray(program()).tolist()
        hit = any(event.endswith("cache_hits") for event in events)
        found[name] = [hit, any(event.endswith("cache_misses") for event in events), out]
    print(json.dumps(found))
"""


def test_another_process_finds_programs_in_the_persistent_cache(tmp_path):
    """They name plans by content, which each process has by itself."""
    code = textwrap.dedent(PERSISTENT)
    flags = "--xla_force_host_platform_device_count=2"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = []
    for _ in range(2):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        runs.append(json.loads(done.stdout))
    for name, (_, missed, out) in runs[0].items():
        assert missed, name
        assert runs[1][name] == [True, False, out], name
