# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Segments, products and attention on eight devices; a part of sharding_program.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index
from jax_index import Graph

D, M, N, H, W = 8, 14, 6, 8, 3

OPS = {
    "segment_max": lambda g, x: jax_index.segment_max(jax_index.gather(x, g.senders), g.receivers),
    "segment_softmax": lambda g, x: jax_index.segment_softmax(
        jax_index.gather(x, g.senders), g.receivers
    ),
    "spmm": lambda g, x: jax_index.spmm(g, x, jax_index.sddmm(g, x, x)),
    "attention": lambda g, x: jax_index.graph_attention(g, x, x, x),
    "gat": lambda g, x: jax_index.gat_attention(g, x, x, x[:2]),
}


def check(mesh, found):
    """Add to `found` what holds on the devices of a mesh with the axis "d"."""
    rng = np.random.default_rng(1)
    graphs = []
    for _ in range(D):
        ends = rng.integers(-1, N + 1, (2, M))
        graphs.append(Graph(*ends, num_senders=N, num_receivers=N, mode="drop").generic)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *graphs)
    shared = jnp.asarray(rng.standard_normal((N, H, W)), jnp.float32)
    batch = jnp.asarray(rng.standard_normal((D, N, H, W)), jnp.float32)
    first = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)

    def same(name, actual, expected):
        found[name] = bool(np.array_equal(actual, expected)) and bool(np.any(np.asarray(expected)))

    def close(name, actual, expected):
        scale = np.abs(np.asarray(expected)).max()
        found[name] = bool(scale > 0 and np.abs(actual - expected).max() <= 1e-5 * scale)

    for name, op in OPS.items():
        # Graphs and data differ, or the data are shared: JAX then adds gradients over devices.
        for data, spec, axis in ((batch, P("d"), 0), (shared, P(), None)):
            inside = lambda g, x, op=op, spec=spec: op(first(g), x[0] if spec else x)[None]
            sharded = jax.shard_map(
                inside, mesh=mesh, in_specs=(P("d"), spec or P()), out_specs=P("d")
            )
            plain = jax.vmap(op, (0, axis))
            what = f"{name} of {'each' if spec else 'shared'}"
            same(what, jax.jit(sharded)(stacked, data), jax.jit(plain)(stacked, data))
            if spec or name == "segment_max":
                continue
            loss = lambda f: lambda x: (f(stacked, x) ** 2).sum()
            slope = lambda f, loss=loss: jax.jit(jax.grad(loss(f)))
            close(f"{what}, gradient", slope(sharded)(data), slope(plain)(data))
            if name == "spmm":
                twice = lambda f, loss=loss: jax.jit(
                    jax.grad(lambda x: (jax.grad(loss(f))(x) ** 2).sum())
                )
                close(f"{what}, twice", twice(sharded)(data), twice(plain)(data))

    # Heads that are sharded: the values are right on an automatic mesh, and stay sharded on an
    # explicit one.
    graph, by_head, ones = graphs[0], P(None, "d", None), jnp.ones((M, H))
    calls = {
        "spmm": lambda x, w: jax_index.spmm(graph, x, w),
        "segment_mean": lambda x, w: jax_index.segment_mean(x, np.array([0, 0, 1, 1, 2, 2])),
        # One operand varies: the sum over several uses of an array is JAX's, in its own order.
        "attention": lambda x, w: jax_index.graph_attention(
            graph, x, *[jax.lax.stop_gradient(x)] * 2, weights=w
        ),
    }
    both = lambda call: lambda x, w: (
        call(x, w),
        jax.vjp(lambda x: call(x, w), x)[1](call(x, w))[0],
    )
    expected = {
        name: [np.asarray(v) for v in both(call)(shared, ones)] for name, call in calls.items()
    }
    for kind in (AxisType.Auto, AxisType.Explicit):
        other = jax.make_mesh((D,), ("d",), axis_types=(kind,))
        with jax.set_mesh(other):
            x = jax.device_put(shared, NamedSharding(other, by_head))
            w = jax.device_put(ones, NamedSharding(other, P(None, "d")))
            for name, call in calls.items():
                results = jax.jit(both(call))(x, w)
                for what, value, wanted in zip(
                    ("", ", gradient"), results, expected[name], strict=True
                ):
                    same(f"{name} by heads, {kind}{what}", value, wanted)
                    if kind == AxisType.Explicit:
                        spec = jax.typeof(value).sharding.spec
                        found[f"{name} by heads{what}, spec"] = spec == P(
                            None, "d", *[None] * (value.ndim - 2)
                        )
