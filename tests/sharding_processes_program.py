# SPDX-License-Identifier: Apache-2.0
"""One of two processes with two devices each; started by test_sharding_rules.py.

Arguments: the address of the coordinator, and the number of this process. It prints what holds of
the shards that this process has.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index


def main():
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]), initialization_timeout=60)
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(0)
    ids = rng.integers(-1, 7, 16)
    plan = jax_index.make_plan(ids, 6, mode="drop")
    data = rng.integers(-3, 4, (16, 8)).astype(np.float32)
    sums = np.zeros((6, 8), np.float32)
    for row, values in zip(ids, data, strict=True):
        if 0 <= row < 6:
            sums[row] += values
    found = {"devices": [jax.local_device_count(), jax.device_count()]}

    def put(spec):
        sharding = NamedSharding(mesh, spec)
        return jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])

    def right(out, wanted):
        return all(np.array_equal(s.data, wanted[s.index]) for s in out.addressable_shards)

    def loss(y):
        return (jax_index.scatter_add(y, plan) ** 2).sum()

    by_feature, by_edge = put(P(None, "d")), put(P("d"))
    for name, f, value, wanted, reductions in (
        ("features", lambda y: jax_index.scatter_add(y, plan), by_feature, sums, 0),
        (
            "gradient",
            jax.grad(loss),
            by_feature,
            np.where((ids >= 0)[:, None] & (ids < 6)[:, None], 2 * sums[ids % 6], 0),
            0,
        ),
        (
            "edges",
            lambda y: jax_index.scatter_add(y, plan, allow_reduction=True),
            by_edge,
            sums,
            1,
        ),
    ):
        program = jax.jit(f).lower(value).compile()
        text = program.as_text()
        found[name] = right(program(value), wanted)
        found[f"{name}, collectives"] = (
            text.count(" all-reduce(") + text.count(" all-reduce-start(") == reductions
            and "all-gather" not in text
        )
    print(json.dumps(found))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
