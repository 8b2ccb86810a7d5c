# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Programs in bytes: which checks they need, for which platforms, and plans as their arguments."""

from __future__ import annotations

import pickle
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import serialize_executable

import jax_index
from jax_index import Graph, _native

from . import oracle
from .test_transform_table import OPS, Case, here

SENDERS, RECEIVERS = [0, 3, 3, -1, 1], [4, 0, 4, 1, -1]


def make_graph(senders=SENDERS, receivers=RECEIVERS):
    return Graph(senders, receivers, num_senders=4, num_receivers=5, mode="drop").generic


def attend(graph, x):
    """Some kernels of every kind: of rows, of products, of scores."""
    out = jax_index.graph_attention(graph, x, x[:4], x[:4])
    return jax_index.gather(out, graph.receivers, lowering="kernel")


def export(fn, *arguments, platforms=None):
    allowed, platforms = jax_index.export_checks(), platforms or [here()]
    return jax.export.export(jax.jit(fn), platforms=platforms, disabled_checks=allowed)(*arguments)


def targets(exported):
    return set(re.findall(r"@(jax_index\.\w+)", exported.mlir_module()))


def test_every_kernel_is_among_the_checks():
    allowed = jax_index.export_checks()
    assert [type(check) for check in allowed] == [jax.export.DisabledSafetyCheck] * len(allowed)
    names = [check.is_custom_call() for check in allowed]
    assert names == sorted(set(names))
    if _native.CPU.module is not None:
        assert set(names) == {f"jax_index.{op}" for op in _native.CPU.handlers}
    # They are the very ones that programs name, gradients included.
    for op in OPS:
        case = Case(op)
        assert targets(export(case.both, *case.first(), platforms=["cpu"])) <= set(names)


def test_without_the_checks_a_program_is_refused(cpu):
    if _native.CPU.module is None:
        pytest.skip("programs in pure JAX need no checks")
    with pytest.raises(ValueError, match=r"jax_index\.sddmm"):
        jax.export.export(jax.jit(attend), platforms=["cpu"])(make_graph(), jnp.ones((5, 1, 2)))


@pytest.mark.parametrize("platforms", [["cuda"], ["cpu", "cuda"]], ids="+".join)
def test_export_for_another_platform(rng, cpu, monkeypatch, platforms):
    """From a machine without a GPU; with the CUDA part, or as if it were there, with kernels."""
    if _native.CUDA.module is None:
        monkeypatch.setattr(_native.CUDA, "module", _native.CPU.module)
    graph, x = make_graph(), jnp.asarray(rng.standard_normal((5, 2, 3)), jnp.float32)
    exported = export(attend, graph, x, platforms=platforms)
    assert exported.platforms == tuple(platforms)
    if _native.CPU.module is not None:
        assert {"jax_index.sddmm", "jax_index.spmm", "jax_index.gather"} <= targets(exported)
    content = exported.serialize(vjp_order=1)
    again = jax.export.deserialize(content)
    if "cpu" in platforms:
        oracle.assert_same(again.call(graph, x), attend(graph, x))
    else:
        with pytest.raises(ValueError, match="platform"):
            again.call(graph, x)


def test_without_kernels_for_a_platform_its_program_is_pure_jax(monkeypatch):
    monkeypatch.setattr(_native, "_warned", set())
    monkeypatch.setattr(_native.CUDA, "module", None)
    with pytest.warns(RuntimeWarning, match=r"jax_index\._cuda: the compiled part is not used"):
        exported = export(attend, make_graph(), jnp.ones((5, 2, 3)), platforms=["cuda"])
    assert targets(exported) == set()


def test_plans_and_graphs_pass_through_saved_programs(device, rng):
    """As arguments of one saved program, and as its results."""

    def step(plan, graph, x):
        out = jax_index.scatter_add(attend(graph, x), plan)
        return out, plan, graph.T, jax_index.make_plan(plan.ids, 7, mode="drop")

    make = lambda ids: jax_index.make_plan(ids, 6, mode="drop").generic
    plan, graph = make([0, 5, 2, 5, -1]), make_graph()
    x = jnp.asarray(rng.standard_normal((5, 2, 3)), jnp.float32)
    saved = export(step, plan, graph, x).serialize()
    again = jax.export.deserialize(saved)
    assert again.in_tree == jax.tree.structure(((plan, graph, x), {}))
    others = make([1, 1, 1, -1, 0]), make_graph([2, 0, 1, 3, 3])
    for plan, graph in ((plan, graph), others):  # noqa: B020 (the first pair is made before)
        out, same, transposed, made = again.call(plan, graph, x)
        oracle.assert_same(out, jax_index.scatter_add(attend(graph, x), plan))
        assert same == plan
        assert transposed == graph.T
        assert made == jax_index.make_plan(plan.ids, 7, mode="drop")
    # The sizes and flags of a plan belong to the program.
    flagged = jax_index.make_plan([0, 0, 1, 1, 5], 6)
    for other in (flagged, jax_index.make_plan(flagged.ids, 9).generic):
        with pytest.raises(ValueError, match="tree"):
            again.call(other, graph, x)


def test_gradients_of_saved_programs(device, rng):
    graph, x = make_graph(), jnp.asarray(rng.standard_normal((5, 2, 3)), jnp.float32)
    saved = export(attend, graph, x).serialize(vjp_order=2)
    call = jax.export.deserialize(saved).call
    ct = jnp.asarray(rng.standard_normal((5, 2, 3)), jnp.float32)
    back = lambda fn: lambda v: jax.vjp(lambda u: fn(graph, u), v)[1](ct)[0]
    oracle.assert_same(back(call)(x), back(attend)(x))
    twice = lambda fn: jax.vjp(back(fn), x)[1](x)[0]
    np.testing.assert_allclose(twice(call), twice(attend), rtol=1e-5, atol=1e-6)


def test_symbolic_sizes_of_features(device, rng):
    """A saved program for any width: ids are of one size, features are not."""
    plan = jax_index.make_plan([0, 2, 0, 1], 3).generic
    (width,) = jax.export.symbolic_shape("width")
    y = jax.ShapeDtypeStruct((4, width), jnp.float32)
    again = jax.export.deserialize(export(jax_index.scatter_add, y, plan).serialize())
    for size in (1, 7):
        given = jnp.asarray(rng.standard_normal((4, size)), jnp.float32)
        oracle.assert_same(again.call(given, plan), jax_index.scatter_add(given, plan))


def test_compiled_programs_are_serialised(device, rng):
    """The executable itself, for machines of one kind; plans are arguments of what is loaded."""
    graph, x = make_graph(), jnp.asarray(rng.standard_normal((5, 2, 3)), jnp.float32)
    compiled = jax.jit(attend).lower(graph, x).compile()
    content, *trees = serialize_executable.serialize(compiled)
    trees = pickle.loads(pickle.dumps(trees))
    load = serialize_executable.deserialize_and_load
    again = load(content, *trees, backend=device.platform)
    for graph in (graph, make_graph([2, 0, 1, 3, 3])):  # noqa: B020 (the first is made before)
        oracle.assert_same(again(graph, x), attend(graph, x))
