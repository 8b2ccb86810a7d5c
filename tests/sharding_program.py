# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""shard_map on eight CPU devices, against the same thing unsharded. Started by test_sharding.py.

A shared operand inside shard_map needs a sum over devices in its gradient. A kernel that loses
track of which values vary over the mesh gives a gradient that is silently too small.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import sharding_graph
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index

D, M, N, W = 8, 12, 6, 3


def main():
    rng = np.random.default_rng(0)
    mesh = jax.make_mesh((D,), ("d",), axis_types=(AxisType.Auto,))
    shard_map = jax.shard_map
    ids = rng.integers(-1, N + 1, (D, M))
    plans = [jax_index.make_plan(each, N, mode="drop").generic for each in ids]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *plans)
    x = jnp.asarray(rng.integers(-3, 4, (N, W)), jnp.float32)
    xs = jnp.asarray(rng.integers(-3, 4, (D, N, W)), jnp.float32)
    ys = jnp.asarray(rng.integers(-3, 4, (D, M, W)), jnp.float32)
    first = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)
    found = {}

    def same(name, actual, expected):
        found[name] = bool(
            jnp.array_equal(jax.device_get(actual), jax.device_get(expected))
        ) and bool(np.any(np.asarray(expected)))

    # Replicated x, sharded plans: value, gradient, gradient of the gradient.
    def taken(x, plans):
        return jax_index.gather(x, first(plans))[None]

    sharded = shard_map(taken, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"))
    plain = lambda x, plans: jax.vmap(jax_index.gather, (None, 0))(x, plans)
    loss = lambda f: lambda x: (f(x, stacked) ** 3 * ys).sum()
    for wrap, kind in ((lambda f: f, "eager"), (jax.jit, "jit")):
        same(f"gather {kind}", wrap(sharded)(x, stacked), plain(x, stacked))
        same(f"grad {kind}", wrap(jax.grad(loss(sharded)))(x), jax.grad(loss(plain))(x))
    # Not eagerly: jax 0.8 itself fails there with an integer operand.
    twice = lambda f: jax.jit(jax.grad(lambda v: (jax.grad(loss(f))(v) ** 2).sum()))
    same("grad of grad", twice(sharded)(x), twice(plain)(x))

    # The gradient taken inside, where x is shared by all devices: JAX inserts the sum.
    def inside(x, plans, y):
        return jax.grad(lambda v: (jax_index.gather(v, first(plans)) ** 2 * y[0]).sum())(x)

    got = shard_map(inside, mesh=mesh, in_specs=(P(), P("d"), P("d")), out_specs=P())
    want = jax.grad(lambda v: (plain(v, stacked) ** 2 * ys).sum())(x)
    same("grad inside", got(x, stacked, ys), want)

    # Everything sharded, and a replicated plan.
    summed = shard_map(
        lambda y, p: jax_index.scatter_add(y[0], first(p))[None],
        mesh=mesh,
        in_specs=(P("d"), P("d")),
        out_specs=P("d"),
    )
    same("scatter_add", summed(ys, stacked), jax.vmap(jax_index.scatter_add)(ys, stacked))
    shared = shard_map(
        lambda y, p: jax_index.scatter_add(y, p, axis=1),
        mesh=mesh,
        in_specs=(P("d"), P()),
        out_specs=P("d"),
    )
    same("shared plan", shared(ys, plans[0]), jax_index.scatter_add(ys, plans[0], axis=1))

    # index_add whose x is shared while y varies, and its gradients.
    added = shard_map(
        lambda x, p, y: jax_index.index_add(x, first(p), y[0])[None],
        mesh=mesh,
        in_specs=(P(), P("d"), P("d")),
        out_specs=P("d"),
    )
    dense = jax.vmap(jax_index.index_add, (None, 0, 0))
    same("index_add", added(x, stacked, ys), dense(x, stacked, ys))
    square = lambda f: lambda x, y: (f(x, stacked, y) ** 2).sum()
    for k in (0, 1):
        of = lambda f, k=k: jax.jit(jax.grad(square(f), argnums=k))
        same(f"index_add grad {k}", of(added)(x, ys), of(dense)(x, ys))

    # A scan that gathers and sums, with ids traced on each device.
    def layers(x, ids):
        def layer(h, _):
            taken = jax_index.gather(h, ids[0], mode="drop")
            return jax_index.scatter_add(taken, ids[0], num_rows=N), None

        return jax.lax.scan(layer, x[0], length=3)[0][None]

    device_ids = jnp.asarray(ids, jnp.int32)
    net = shard_map(layers, mesh=mesh, in_specs=(P("d"), P("d")), out_specs=P("d"))
    want = jax.vmap(lambda x, i: layers(x[None], i[None])[0])
    same("scan", net(xs, device_ids), want(xs, device_ids))
    slope = lambda f: jax.jit(jax.grad(lambda v: (f(v, device_ids) ** 2).sum()))
    same("scan grad", slope(net)(xs), slope(want)(xs))

    # Ids that are spread over the devices of this process are read as one array.
    spread = jax.device_put(device_ids.reshape(-1), NamedSharding(mesh, P("d")))
    of_spread = jax_index.make_plan(spread, N, mode="drop")
    same("spread ids", of_spread.perm, jax_index.make_plan(ids.reshape(-1), N, mode="drop").perm)

    # Automatic sharding gives the right values too, whatever it moves.
    batch = jax.device_put(xs, NamedSharding(mesh, P("d")))
    automatic = jax.jit(jax.vmap(lambda v: jax_index.gather(v, plans[0])))
    same("automatic", automatic(batch), jax.vmap(lambda v: jax_index.gather(v, plans[0]))(xs))
    # Plans made where JAX makes tracers or arrays of a mesh are concrete and committed to nothing:
    # what the cache keeps serves every later call.
    raw = np.array([5, 0, 2, 2, 3, 7, 1, 0])
    v = jnp.arange(8.0)
    wide = jnp.ones((8, D))
    eager = shard_map(
        lambda x: jax_index.gather(x, raw), mesh=mesh, in_specs=P(None, "d"), out_specs=P(None, "d")
    )
    same("raw ids in an eager shard_map", eager(wide), wide[raw])
    same("the cache after it", jax_index.gather(v, raw), v[raw])
    for kind in (AxisType.Auto, AxisType.Explicit):
        with jax.set_mesh(jax.make_mesh((D,), ("d",), axis_types=(kind,))):
            made = jax_index.make_plan(raw[:-1], 8)
        elsewhere = jax.device_put(v, jax.devices()[1])
        same(f"a plan made under a mesh, {kind}", jax_index.gather(elsewhere, made), v[raw[:-1]])

    # An explicit mesh: features stay sharded, rows become replicated.
    explicit = jax.make_mesh((D,), ("d",), axis_types=(AxisType.Explicit,))
    plan = jax_index.make_plan(np.arange(16) % 8, 8)
    with jax.set_mesh(explicit):
        y = jax.device_put(
            jnp.arange(16.0 * D).reshape(16, D), NamedSharding(explicit, P(None, "d"))
        )
        summed = jax.jit(jax_index.scatter_add)(y, plan)
        found["explicit spec"] = jax.typeof(summed).sharding.spec == P(None, "d")
        x = jax.device_put(wide, NamedSharding(explicit, P(None, "d")))
        slope = jax.grad(lambda x: (jax_index.gather(x, plan) ** 2).sum())(x)
        rows = jax.device_put(wide, NamedSharding(explicit, P("d", None)))
        taken = jax_index.gather(rows, plan)
    same("explicit scatter_add", summed, np.asarray(y).reshape(2, 8, D).sum(0))
    same("explicit gather grad", slope, 4 * np.ones((8, D)))
    same("explicit rows", taken, np.ones((16, D)))
    sharding_graph.check(mesh, found)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
