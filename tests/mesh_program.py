# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Meshes without devices, loops of a shard_map, and out_sharding; run by a test."""

from __future__ import annotations

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index
from jax_index import primitives

M, N, H, W = 12, 6, 4, 8
RNG = np.random.default_rng(0)
GRAPH = jax_index.Graph(
    RNG.integers(-1, N, M), RNG.integers(-1, N, M), num_senders=N, num_receivers=N, mode="drop"
)
X = jnp.asarray(RNG.integers(-3, 4, (N, H, W)), jnp.float32)
BY_HEAD = P(None, "d")


def net(library, x):
    """Ops of every family."""
    out = library.graph_attention(GRAPH, x, 2 * x, x)
    sent = library.gather(library.spmm(GRAPH, out), GRAPH.senders)
    return library.segment_softmax(sent, GRAPH.receivers)


def gradient(library):
    return lambda x: jax.grad(lambda x: (net(library, x) ** 2).sum())(x)


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(u, v) and np.any(np.asarray(v)) for u, v in leaves)


def without_devices(found):
    """Programs for an AbstractMesh, and what they compute on a mesh of as many devices."""
    real = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(X, NamedSharding(real, BY_HEAD))
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = AbstractMesh((4,), ("d",), axis_types=(kind,))
        given = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=NamedSharding(mesh, BY_HEAD))
        for library in (jax_index, primitives):
            f = gradient(library)
            body = jax.shard_map(f, mesh=mesh, in_specs=BY_HEAD, out_specs=BY_HEAD)
            right = jax.jit(f)(X)
            for where, g in (("jit", f), ("shard_map", body)):
                name = f"{kind}, {library.__name__}, {where}"
                allowed = jax_index.export_checks()
                exported = jax.export.export(
                    jax.jit(g), platforms=["cpu"], disabled_checks=allowed
                )(given)
                text = exported.mlir_module()
                found[f"{name}: kernels"] = "jax_index.spmm" in text
                found[f"{name}: on 4 devices"] = exported.nr_devices == 4
                call = jax.export.deserialize(exported.serialize()).call
                if kind == AxisType.Auto:
                    found[f"{name}: values"] = same(jax.jit(call)(placed), right)
            # Constants do not say for which mesh they are: the context does.
            counted = lambda x, f=f, library=library: f(x) * library.segment_sum(
                jnp.ones((M, 1, 1)), GRAPH.receivers
            )
            with jax.sharding.use_abstract_mesh(mesh):
                lowered = jax.jit(counted).trace(given).lower(lowering_platforms=("cpu",))
            found[f"{name}: in a context"] = "jax_index.spmm" in lowered.as_text()
    # With devices a program is cut as ever: all heads are never on one.
    text = jax.jit(gradient(jax_index)).lower(placed).compile().as_text()
    found["cut"] = "all-gather" not in text and "all-reduce" not in text


def in_loops(found):
    """A scan of gathers and sums on two devices: plans and ids that differ, or are shared."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    ids = jnp.asarray(RNG.integers(-1, N + 1, (2, M)), jnp.int32)
    x = jnp.asarray(RNG.integers(-2, 3, (2, N, W)), jnp.float32)
    forms = {
        "ids of each device": lambda i: i[0],
        "plans of each device": lambda i: jax_index.make_plan(i[0], N, mode="drop"),
        "a shared plan": lambda i: GRAPH.receivers,
        "a shared static plan": lambda i: GRAPH.receivers.static,
    }
    for library in (jax_index, primitives):
        for name, form in forms.items():
            if library is primitives and "ids" not in name:
                continue
            kinds = []

            def layers(x, ids, form=form, library=library, kinds=kinds):
                index = form(ids)

                def layer(h, _):
                    sent = library.gather(h, index)
                    return library.segment_sum(sent, index, N), None

                out = jax.lax.scan(layer, x[0], length=3)[0][None]
                kinds.append(getattr(jax.typeof(out), "vma", None) or str(jax.typeof(out)))
                return out

            net = jax.shard_map(layers, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
            plain = lambda x, ids, f=layers: jnp.concatenate(
                [f(x[k : k + 1], ids[k : k + 1]) for k in range(2)]
            )
            key = f"{library.__name__}, {name}"
            found[f"{key}: value"] = same(jax.jit(net)(x, ids), jax.jit(plain)(x, ids))
            found[f"{key}: varies"] = "d" in kinds[0]
            slope = lambda f: jax.jit(jax.grad(lambda x: (f(x, ids) ** 2).sum()))
            found[f"{key}: gradient"] = same(slope(net)(x), slope(plain)(x))


def out_shardings(found):
    """The result is moved where it is asked to be, and its cotangent back."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Explicit,))
    ids, data = RNG.integers(0, 8, M), jnp.asarray(RNG.integers(-3, 4, (M, W)), jnp.float32)
    by_feature = jax.device_put(data, NamedSharding(mesh, P(None, "d")))
    whole = jax.device_put(data, NamedSharding(mesh, P()))
    for name in ("sum", "mean", "max", "min", "prod", "var", "std", "softmax", "logsumexp"):
        op = getattr(jax_index, f"segment_{name}")
        plain = jax.jit(lambda x, op=op: op(x, ids, 8))(data)
        slope = jax.vjp(lambda x, op=op: op(x, ids, 8), data)[1](jnp.cos(plain))[0]
        ways = ((by_feature, P("d")), (whole, P(None, "d")), (by_feature, P()))
        for given, spec in ways if name == "sum" else ways[:1]:
            key = f"segment_{name}, {spec}"
            wanted = NamedSharding(mesh, spec)
            f = lambda x, op=op, s=spec: op(x, ids, 8, out_sharding=s)
            with jax.set_mesh(mesh):
                outs = [f(given), jax.jit(f)(given)]
            outs.append(jax.jit(lambda x, op=op, s=wanted: op(x, ids, 8, out_sharding=s))(given))
            found[key] = all(
                same(out, plain) and out.sharding.is_equivalent_to(wanted, 2) for out in outs
            )
            with jax.set_mesh(mesh):
                back = jax.jit(lambda x, f=f: jax.vjp(f, x)[1](jnp.cos(f(x)))[0])(given)
            found[f"{key}, gradient"] = bool(np.allclose(back, slope, rtol=1e-5, atol=1e-5)) and (
                back.sharding.is_equivalent_to(given.sharding, 2)
            )
    total = lambda sharding, x=data: jax_index.segment_sum(x, ids, 8, out_sharding=sharding)
    auto = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    for kind, text, sharding in (
        (ValueError, "out_sharding must be over a mesh, got ", P("d")),
        (ValueError, "must be over explicit axes of the mesh", NamedSharding(auto, P("d"))),
        (
            ValueError,
            "cuts the result's shape (8, 8) evenly",
            NamedSharding(mesh, P(None, None, "d")),
        ),
        (TypeError, "out_sharding must be None, a NamedSharding or a PartitionSpec", 3),
    ):
        try:
            total(sharding)
        except kind as error:
            found[f"error: {text}"] = "jax_index.segment_sum: " in str(error) and text in str(error)
    edges = jax.device_put(data, NamedSharding(mesh, P("d")))
    with jax.set_mesh(mesh):
        added = jax.jit(
            lambda x: jax_index.segment_sum(
                x, ids, 8, out_sharding=P(None, "d"), allow_reduction=True
            )
        )(edges)
    found["edges that are cut, added"] = same(added, total(None))


def main():
    found = {}
    without_devices(found)
    in_loops(found)
    out_shardings(found)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
