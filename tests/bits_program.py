# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""A program whose printed digests must not depend on how it is run. Started by test_bits.py.

Usage: python bits_program.py [number of CPUs to stay on]
"""

from __future__ import annotations

import hashlib
import json
import os
import sys

if len(sys.argv) > 1:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[1])])

import cases
import jax
import jax.numpy as jnp
import numpy as np

import jax_index
from jax_index import _native
from jax_index.ops.convert import convert


def digest(value):
    value = np.asarray(value)
    nan = np.isnan(value.astype(np.complex128 if value.dtype.kind == "c" else np.float64))
    raw = np.ascontiguousarray(value).view(np.uint8).reshape(value.size, -1).copy()
    raw[nan.reshape(-1)] = 0xFF
    return hashlib.sha256(raw.tobytes()).hexdigest()[:16]


def graph_ops(out, rng, receivers):
    """Values and gradients of segments, products and attention; many edges, and a hub."""
    senders = rng.integers(-1, 700, receivers.size)
    sizes = {"num_senders": 700, "num_receivers": 3000}
    graph = jax_index.Graph(senders, receivers, **sizes, mode="drop")
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
    with_slope = lambda f, *a: (f(*a), jax.vjp(f, *a)[1](f(*a)))

    calls, given = {}, {}

    def keep(name, fn, *arrays):
        calls[name], given[name] = fn, arrays

    plan, y = graph.receivers, draw(receivers.size, 3)
    tiny = rng.integers(0, 2**20, (receivers.size, 3), dtype=np.uint32).view(np.float32)
    for name in ("mean", "max", "prod", "std", "softmax", "logsumexp"):
        op = getattr(jax_index, f"segment_{name}")
        keep(name, lambda v, op=op: op(v, plan), 1 + 0.1 * y if name == "prod" else y)
        keep(f"{name}/bfloat16", lambda v, op=op: op(v, plan), y.astype(jnp.bfloat16))
    keep("mean/subnormal", lambda v: jax_index.segment_mean(v, plan), jnp.asarray(tiny))
    mean = np.asarray(jax_index.segment_mean(jnp.asarray(tiny), plan))
    out["subnormal means are kept"] = str(bool((mean[:5] > 0).all()))
    q, k, w = draw(3000, 2, 9), draw(700, 2, 9), draw(receivers.size, 2)
    keep("spmm", lambda x, w: jax_index.spmm(graph, x, w), k, w)
    keep(
        "spmm/float16",
        lambda x, w: jax_index.spmm(graph, x, w),
        *(v.astype("float16") for v in (k, w)),
    )
    keep("sddmm", lambda x, y: jax_index.sddmm(graph, x, y), k, q)
    keep("attention", lambda q, k, w: jax_index.graph_attention(graph, q, k, k, weights=w), q, k, w)
    gat = jax_index.gat_attention
    keep("gat", lambda h, r, a: gat(graph, h, r, a), k, q, draw(2, 2, 9))
    keep("gat2", lambda h, r, a: gat(graph, h, r, a, version=2), k, q, draw(2, 9))
    run = jax.jit(lambda given: {name: with_slope(f, *given[name]) for name, f in calls.items()})
    for name, found in run(given).items():
        for leaf_number, leaf in enumerate(jax.tree.leaves(found)):
            out[f"{name}/{leaf_number}"] = digest(leaf)


def main():
    out = {}
    rng = np.random.default_rng(11)
    ids = rng.integers(-1, 3000, 60_000)
    ids[rng.random(ids.size) < 0.4] = 17
    ids[rng.random(ids.size) < 0.02] = 2999
    plan = jax_index.make_plan(ids, 3000, mode="drop")
    out["plan"] = plan.digest + digest(plan.perm) + digest(plan.indptr) + digest(plan.tasks)
    in_order = jax_index.make_plan(np.sort(ids), 3000, mode="drop")
    wide = {
        "float32": (1, 7, 24),
        "float16": (7,),
        "bfloat16": (24,),
        "int16": (1,),
        "complex64": (5,),
    }
    for dtype, widths in wide.items():
        for width in widths:
            y = jnp.asarray(cases.values(rng, (ids.size, width), dtype))
            x = jnp.asarray(cases.values(rng, (3000, width), dtype))
            name = f"{dtype}/{width}"
            out[f"scatter_add/{name}"] = digest(jax_index.scatter_add(y, plan))
            out[f"sorted/{name}"] = digest(jax_index.scatter_add(y, in_order))
            out[f"gather/{name}"] = digest(jax_index.gather(x, plan))
            out[f"index_add/{name}"] = digest(jax_index.index_add(x, plan, y))
    for dtype in [*cases.FLOAT8, *cases.FLOAT4]:
        count = 16 if dtype in cases.FLOAT4 else 256
        every = np.arange(count, dtype=np.uint8).view(dtype)
        pairs = jnp.asarray(np.stack([v.reshape(-1) for v in np.meshgrid(every, every)]))
        out[f"pairs/{dtype}"] = digest(jax_index.scatter_add(pairs, [0, 0], num_rows=1))
        out[f"decode/{dtype}"] = digest(convert(jnp.asarray(every), jnp.float32))
    floats = jnp.asarray(rng.integers(0, 2**32, 1 << 18, dtype=np.uint32).view(np.float32))
    for dtype in cases.NARROW:
        out[f"encode/{dtype}"] = digest(convert(floats, dtype))
    tiny = jnp.asarray(rng.integers(0, 2**23, (ids.size, 4), dtype=np.uint32).view(np.float32))
    sums = jax_index.scatter_add(tiny, plan)
    out["subnormal"] = digest(sums)
    out["subnormals are kept"] = str(bool((np.asarray(sums)[:5] > 0).all()))
    traced = jax.jit(lambda y, ids: jax_index.scatter_add(y, ids, num_rows=3000))
    y = jnp.asarray(rng.standard_normal((ids.size, 2)), jnp.float32)
    out["traced"] = digest(traced(y, jnp.asarray(ids, jnp.int32)))
    batch = jnp.asarray(rng.standard_normal((3, ids.size)), jnp.float32)
    out["batched"] = digest(jax.vmap(lambda v: jax_index.scatter_add(v, plan))(batch))
    loss = lambda v: (jax_index.gather(v, plan) ** 3).sum()
    out["gradient of gather"] = digest(jax.grad(loss)(jnp.arange(3000.0) % 7))
    graph_ops(out, rng, ids[:20_000])
    json.dump({"target": _native.CPU.info.get("cpu_target", "none"), "digests": out}, sys.stdout)


if __name__ == "__main__":
    main()
