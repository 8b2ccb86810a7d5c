# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Which collectives a compiled program has, for each op and each axis that is sharded.

Started by test_sharding_rules.py with "automatic" or "explicit", the kind of the mesh. It prints,
for each cell of README's table, what it found: the collectives, or "error" for the refusal of the
package, and whether values are those of the unsharded program.
"""

from __future__ import annotations

import json
import os
import re
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index
from jax_index import Graph, primitives

D, N, M, H, W = 4, 8, 12, 4, 8
EXPLICIT = sys.argv[1] == "explicit"
KIND = AxisType.Explicit if EXPLICIT else AxisType.Auto
MESH = jax.make_mesh((D,), ("d",), axis_types=(KIND,), devices=jax.devices()[:D])
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
COLUMNS = ("rows", "edges", "features", "heads", "batch", "plans")
# What the mesh axis shards of an array of nodes or edges [rows, heads, features].
DATA = {"rows": P("d"), "edges": P("d"), "features": P(None, None, "d"), "heads": P(None, "d")}


def put(tree, spec):
    return jax.tree.map(lambda v: jax.device_put(v, NamedSharding(MESH, spec)), tree)


def constrained(x):
    """Shard x over the edges inside a program for several devices."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    sharding = NamedSharding(MESH, P("d"))
    if EXPLICIT:
        return jax.sharding.reshard(x, sharding)
    return jax.lax.with_sharding_constraint(x, sharding)


def count(text):
    """Name the collectives of a compiled program, and how many there are."""
    found = {c: len(re.findall(rf" {c}(?:-start)?\(", text)) for c in COLLECTIVES}
    return {name: number for name, number in found.items() if number}


def values_of(f, plain):
    """What f returns on one device."""
    return [np.asarray(v) for v in jax.tree.leaves(jax.jit(f)(*plain))]


def look(f, args, wanted, mesh=MESH):
    """Compile f for sharded arguments; compare its values with those of one device."""
    try:
        with jax.set_mesh(mesh):
            program = jax.jit(f).lower(*args).compile()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if "the axis of edges must be" not in str(error):
            raise
        return {"found": "error", "text": re.search(r"jax_index\.[^\n]*", str(error))[0]}
    text = program.as_text()
    found = count(text)
    results = [np.asarray(v) for v in jax.tree.leaves(program(*args))]
    same = all(np.array_equal(a, b) for a, b in zip(results, wanted, strict=True))
    near = all(
        np.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(results, wanted, strict=True)
    )
    kernels = text.count('custom_call_target="jax_index.')
    some = all(np.any(v) for v in wanted)
    return {"found": found, "same": same, "near": near and some, "kernels": kernels}


def cells():
    """Give (op, column, function of (plan or graph, arrays), plan or graph, arrays, specs)."""
    rng = np.random.default_rng(0)
    number = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
    ends = lambda: (rng.integers(-1, N, M), rng.integers(-1, N, M))
    graphs = [Graph(*ends(), num_senders=N, num_receivers=N, mode="drop").generic for _ in range(D)]
    graph, plan = graphs[0], graphs[0].receivers
    stack = lambda trees: jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    plans = stack([g.receivers for g in graphs])
    x, y, w = number(N, H, W), number(M, H, W), number(M, H)

    gather = lambda p, x: jax_index.gather(x, p)
    total = lambda p, y: jax_index.scatter_add(y, p)
    ops = {
        "gather": (gather, plan, plans, [(x, "rows")]),
        "scatter_add": (total, plan, plans, [(y, "edges")]),
        "index_add": (
            lambda p, x, y: jax_index.index_add(x, p, y),
            plan,
            plans,
            [(x, "rows"), (y, "edges")],
        ),
        "segment_max": (lambda p, y: jax_index.segment_max(y, p), plan, plans, [(y, "edges")]),
        "segment_softmax": (
            lambda p, y: jax_index.segment_softmax(y, p),
            plan,
            plans,
            [(y, "edges")],
        ),
        "spmm": (jax_index.spmm, graph, stack(graphs), [(x, "rows"), (w, "edges")]),
        "sddmm": (jax_index.sddmm, graph, stack(graphs), [(x, "rows"), (number(N, H, W), "rows")]),
        "graph_attention": (
            lambda g, x, v, w: jax_index.graph_attention(g, x, x, v, bias=w),
            graph,
            stack(graphs),
            [(x, "rows"), (number(N, H, W), "rows"), (w, "edges")],
        ),
    }
    for op, (call, one, many, arrays) in ops.items():
        for column in COLUMNS:
            if column in ("batch", "plans"):
                values = [jnp.stack([v * (k + 1) for k in range(D)]) for v, _ in arrays]
                axis, form = (0, many) if column == "plans" else (None, one)
                batched = jax.vmap(call, (axis, *[0] * len(arrays)))
                specs = [P("d")] * len(values)
                yield op, column, batched, form, P("d") if axis == 0 else P(), values, specs
                continue
            specs = [
                P()
                if column in ("rows", "edges") and column != role
                else P(*DATA[column][: v.ndim])
                for v, role in arrays
            ]
            form, run = P(), call
            if op == "gather" and column == "edges":
                form = jax.tree.map(lambda leaf: P("d") if leaf.shape == (M,) else P(), one)
            elif op == "sddmm" and column == "edges":
                run = lambda g, x, y: constrained(jax_index.sddmm(g, x, y))
            elif not any(specs):
                continue
            yield op, column, run, one, form, [v for v, _ in arrays], specs


def gradients(call):
    def run(plan, *arrays):
        loss = lambda *arrays: (call(plan, *arrays) ** 2).sum()
        return jax.grad(loss, tuple(range(len(arrays))))(*arrays)

    return run


def allowed(found):
    """Sums over devices, where they are asked for; whole numbers have no rounding."""
    rng = np.random.default_rng(1)
    plan = jax_index.make_plan(rng.integers(-1, N + 1, 16), N, mode="drop")
    whole = lambda *shape: jnp.asarray(rng.integers(-3, 4, shape), jnp.float32)
    scatter = lambda p, y: jax_index.scatter_add(y, p, allow_reduction=True)
    segment = lambda p, y: jax_index.segment_sum(y, p, allow_reduction=True)
    take = lambda p, x: jax_index.gather(x, p, allow_reduction=True)
    last = lambda p, y: jax_index.scatter_add(y, p, axis=1, allow_reduction=True)
    shards = jax.tree.map(lambda leaf: P("d") if leaf.shape == (16,) else P(), plan)
    for name, call, form, value, spec in (
        ("scatter_add", scatter, P(), whole(16, W), P("d")),
        ("segment_sum", segment, P(), whole(16, W), P("d")),
        ("bfloat16", scatter, P(), whole(16, W).astype("bfloat16"), P("d")),
        ("int8", scatter, P(), whole(16, W).astype("int8"), P("d")),
        ("complex", scatter, P(), whole(16, W).astype("complex64"), P("d")),
        ("axis 1", last, P(), whole(3, 16), P(None, "d")),
        ("whole edges", scatter, P(), whole(16, W), P(None, "d")),
        ("scatter_add gradient", gradients(scatter), P(), whole(16, W), P("d")),
        ("gather gradient", gradients(take), shards, whole(N, W), P()),
    ):
        args = (placed(plan, form), put(value, spec))
        found[f"allowed, {name}"] = look(call, args, values_of(call, (plan, value)))


def placed(plan, spec):
    """Place a plan by one spec, or by a plan of specs."""
    if isinstance(spec, P):
        return put(plan, spec)
    specs = jax.tree.leaves(spec, is_leaf=lambda s: isinstance(s, P))
    leaves, form = jax.tree.flatten(plan)
    return jax.tree.unflatten(form, [put(v, s) for v, s in zip(leaves, specs, strict=True)])


def reported(found):
    """Two axes of a mesh, loops, remat; outputs keep their sharding; one device keeps its text."""
    mesh = jax.make_mesh((4, 2), ("b", "f"), axis_types=(KIND, KIND))
    rng = np.random.default_rng(2)
    plan = jax_index.make_plan(rng.integers(0, N, M), N)
    value = jnp.asarray(rng.standard_normal((4, N, W)), jnp.float32)

    def layer(h, plan):
        taken = jax.vmap(jax_index.gather, (0, None))(h, plan)
        return jax.vmap(jax_index.segment_mean, (0, None))(taken, plan)

    def net(plan, h):
        step = lambda h, _: (jax.checkpoint(layer)(h, plan), None)
        return jax.lax.scan(step, h, length=3)[0]

    sharded = jax.device_put(value, NamedSharding(mesh, P("b", None, "f")))
    for name, f in (("forward", net), ("gradient", gradients(net))):
        wanted = values_of(f, (plan, value))
        found[f"remat and scan, {name}"] = look(f, (plan, sharded), wanted, mesh)
    with jax.set_mesh(mesh):
        out = jax.jit(gradients(net))(plan, sharded)[0]
        found["remat and scan, spec"] = out.sharding.is_equivalent_to(sharded.sharding, 3)
    once = jax_index.make_plan(np.arange(16) // 4, 4)
    energy = lambda x: (primitives.segment_sum(x, once) ** 3).sum()
    grad = lambda plan, x: jax.grad(lambda x: (jax_index.segment_sum(x, plan) ** 2).sum())(x)
    other = jnp.asarray(rng.standard_normal((16, W)), jnp.float32)
    cut = put(other, P(None, "d"))
    product = lambda x: jax.jvp(jax.grad(energy), (x,), (x,))
    found["forward over reverse"] = look(product, (cut,), values_of(product, (other,)))
    args = (once.static, other)
    found["static plan"] = look(grad, (once.static, cut), values_of(grad, args))
    ids = np.arange(16) // 4
    data = jnp.arange(128.0).reshape(16, 8)
    sharded = put(data, P(None, "d"))
    for name, f in (
        ("segment_sum", lambda x: jax_index.segment_sum(x, ids)),
        ("gather", lambda x: jax_index.gather(x, ids)),
    ):
        found[f"reported, {name}"] = look(f, (sharded,), values_of(f, (data,)))
        with jax.set_mesh(MESH):
            out = jax.jit(f)(sharded)
        found[f"reported, {name}, spec"] = out.sharding.is_equivalent_to(sharded.sharding, 2)
    text = jax.jit(gradients(net)).lower(plan, value).as_text()
    found["one device"] = "CustomSPMDPartitioning" not in text and "sdy.sharding_rule" not in text
    body = jax.shard_map(
        lambda p, h: layer(h, p), mesh=mesh, in_specs=(P(), P("b")), out_specs=P("b")
    )
    args = [jax.device_put(v, NamedSharding(mesh, s)) for v, s in ((plan, P()), (value, P("b")))]
    with jax.set_mesh(mesh):
        text = jax.jit(body).lower(*args).as_text()
    found["shard_map"] = "CustomSPMDPartitioning" not in text and "@jax_index." in text


def main():
    found, known = {}, {}
    for op, column, call, plan, form, values, specs in cells():
        args = [placed(plan, form), *map(put, values, specs)]
        # An explicit mesh is asked for the gradient alone, which contains the forward pass.
        forms = {"": call, ", gradient": gradients(call)}
        if EXPLICIT:
            # There the transpose of a change of sharding undoes it.
            forms.pop("" if (op, column) != ("sddmm", "edges") else ", gradient")
        for which, f in forms.items():
            key = op, which, column if column in ("batch", "plans") else ""
            if key not in known:
                known[key] = values_of(f, [plan, *values])
            found[f"{op}{which}, {column}"] = look(f, args, known[key])
    allowed(found)
    reported(found)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
