# SPDX-License-Identifier: Apache-2.0
"""Gradients over an explicit mesh where operands are sharded differently; run by a test."""

import itertools
import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index
from jax_index import primitives

MESH = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Explicit,))
GRAPH = jax_index.Graph([0, 1, 2, 0], [1, 2, 0, 0], num_senders=3, num_receivers=3)
IDS = np.array([0, 1, 1, 2])
# As many nodes and edges as two to a device.
LARGE = jax_index.Graph(
    [0, 7, 2, 5, 1, 7, 3, 3], [1, 2, 0, 0, 7, 7, 7, 4], num_senders=8, num_receivers=8
)

# name: op, shapes, shardings of the operands.
CASES = {
    "spmm, w replicated": (
        lambda lib, x, w: lib.spmm(GRAPH, x, w),
        [(3, 8), (4, 8)],
        [P(None, "a"), P()],
    ),
    "spmm, x replicated": (
        lambda lib, x, w: lib.spmm(GRAPH, x, w),
        [(3, 8), (4, 8)],
        [P(), P(None, "a")],
    ),
    "sddmm, heads": (
        lambda lib, x, y: lib.sddmm(GRAPH, x, y),
        [(3, 4, 2), (3, 4, 2)],
        [P(None, "a"), P()],
    ),
    "sddmm, features": (
        lambda lib, x, y: lib.sddmm(GRAPH, x, y),
        [(3, 2, 8), (3, 2, 8)],
        [P(None, None, "a"), P()],
    ),
    "gat, heads": (
        lambda lib, h, a: lib.gat_attention(GRAPH, h, h, a),
        [(3, 4, 2), (2, 4, 2)],
        [P(None, "a"), P()],
    ),
    "gat, batch": (
        lambda lib, h, a: lib.gat_attention(GRAPH, h, h, a),
        [(3, 8, 2, 4), (2, 2, 4)],
        [P(None, "a"), P()],
    ),
    "gatv2, batch": (
        lambda lib, h, a: lib.gat_attention(GRAPH, h, h, a, version=2),
        [(3, 8, 2, 4), (2, 4)],
        [P(None, "a"), P()],
    ),
    "attention, bias replicated": (
        lambda lib, h, b: lib.graph_attention(GRAPH, h, h, h, bias=b),
        [(3, 4, 2), (4, 4)],
        [P(None, "a"), P()],
    ),
    "attention, k replicated": (
        lambda lib, h, k: lib.graph_attention(GRAPH, h, k, h),
        [(3, 4, 2), (3, 4, 2)],
        [P(None, "a"), P()],
    ),
    "gather, rows": (
        lambda lib, x, w: lib.gather(x, LARGE.senders) * w,
        [(8, 4), (8, 4)],
        [P("a"), P()],
    ),
    "index_add, rows": (
        lambda lib, x, y: lib.index_add(x, LARGE.senders, y),
        [(8, 4), (8, 4)],
        [P("a"), P()],
    ),
    "sums that are added": (
        lambda lib, y, z: lib.segment_sum(y, LARGE.senders, allow_reduction=True) * z,
        [(8, 4), (8, 4)],
        [P("a"), P()],
    ),
    "spmm, rows": (
        lambda lib, x, w: lib.spmm(LARGE, x, w),
        [(8, 4), (8, 4)],
        [P("a"), P()],
    ),
    "gat, rows": (
        lambda lib, h, a: lib.gat_attention(LARGE, h, h, a),
        [(8, 4, 2), (2, 4, 2)],
        [P("a"), P()],
    ),
    "gatv2, rows": (
        lambda lib, h, a: lib.gat_attention(LARGE, h, h, a, version=2),
        [(8, 4, 2), (4, 2)],
        [P("a"), P()],
    ),
    "index_add, x replicated": (
        lambda lib, x, y: lib.index_add(x, IDS, y),
        [(3, 8), (4, 8)],
        [P(), P(None, "a")],
    ),
}


def main():
    rng = np.random.default_rng(0)
    for (name, (op, shapes, specs)), library in itertools.product(
        CASES.items(), (jax_index, primitives)
    ):
        if library is primitives and "rows" in name and "gat" not in name:
            continue
        arrays = [jnp.asarray(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
        grad = jax.jit(jax.grad(lambda *a, op=op, lib=library: (op(lib, *a) ** 2).sum(), (0, 1)))
        right = grad(*arrays)
        placed = [
            jax.device_put(array, NamedSharding(MESH, spec))
            for array, spec in zip(arrays, specs, strict=True)
        ]
        with jax.set_mesh(MESH):
            found = [grad(*placed)]
        if "rows" in name or "added" in name:
            # Arrays say which mesh they are on: nobody needs to set it.
            found.append(jax.jit(grad)(*placed))
            pair = op(library, *placed), op(library, *arrays)
            np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-5)
        for grads, k in itertools.product(found, range(2)):
            np.testing.assert_allclose(grads[k], right[k], rtol=1e-4, atol=1e-5, err_msg=name)
            same = grads[k].sharding.is_equivalent_to(placed[k].sharding, grads[k].ndim)
            assert same, (name, grads[k].sharding)
    print("all gradients are sharded as their operands are")


main()
