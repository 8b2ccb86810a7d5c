# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""The promise of equal bits: the documented order, and nothing else, decides every result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import _native

from . import cases, oracle

LENGTHS = [31, 32, 33, 127, 128, 129, 130, 1023, 1024, 1025, 1026, 32767, 32768, 32769]


def shuffled(rng, lengths):
    """Ids of rows of the given lengths, in no order."""
    return rng.permutation(np.repeat(np.arange(len(lengths)), lengths)), len(lengths)


def same_as_oracle(rng, ids, num_rows, shape=(), dtype="float32"):
    y = cases.values(rng, (ids.size, *shape), dtype)
    plan = jax_index.make_plan(ids, num_rows, mode="drop")
    expected = oracle.scatter_add(y, ids, num_rows)
    y = jnp.asarray(y)
    oracle.assert_same(jax_index.scatter_add(y, plan), expected)
    oracle.assert_same(jax_index.scatter_add(y, plan.generic), expected)
    return plan, y, expected


def test_a_hub_heavy_pattern_equals_the_host_reference(device, rng):
    ids, num_rows = cases.PATTERNS["hubs"]
    for dtype in ("float32", "bfloat16"):
        for shape in ((), (5,), (64,)):
            _, y, expected = same_as_oracle(rng, ids, num_rows, shape, dtype)
            if dtype != "float32":
                continue
            # The test would be empty if every order gave the same bits.
            jumbled = oracle.scatter_add(np.asarray(y)[::-1], ids[::-1], num_rows)
            assert (oracle.bits(jumbled) != oracle.bits(expected)).any()


@pytest.mark.parametrize("length", LENGTHS)
def test_one_long_row_among_short_ones(device, rng, length):
    lengths = [3, 0, length, 1, 40, 0]
    same_as_oracle(rng, *shuffled(rng, lengths))
    same_as_oracle(rng, *shuffled(rng, lengths), shape=(3,), dtype="float16")
    same_as_oracle(rng, np.sort(shuffled(rng, lengths)[0]), 6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "complex64"])
def test_long_rows_of_every_length_at_once(device, rng, dtype):
    same_as_oracle(rng, *shuffled(rng, LENGTHS), dtype=dtype)


def test_rows_of_two_to_the_twenty_edges_and_more(device, rng):
    same_as_oracle(rng, *shuffled(rng, [5, 1 << 20, 0, 33]))
    same_as_oracle(rng, *shuffled(rng, [200, 1_100_000, 2, 1025]))


def test_long_rows_of_double_precision(device, rng):
    with oracle.x64():
        same_as_oracle(
            rng, *shuffled(rng, [5, 40_000, 0, 33, 129, 1025]), shape=(2,), dtype="float64"
        )


def test_long_rows_in_a_batch_of_plans(device, rng):
    lengths = [[40_000, 1, 0, 1999], [0, 129, 41_000, 871], [2000, 20_000, 10_000, 10_000]]
    ids = np.stack([shuffled(rng, each)[0] for each in lengths])
    plans = [jax_index.make_plan(row, 4).generic for row in ids]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *plans)
    y = cases.values(rng, (3, ids.shape[1], 2), "float32")
    out = jax.jit(jax.vmap(jax_index.scatter_add))(jnp.asarray(y), stacked)
    for k in range(3):
        oracle.assert_same(out[k], oracle.scatter_add(y[k], ids[k], 4))
    shared = jax.jit(jax.vmap(jax_index.scatter_add, (None, 0)))(jnp.asarray(y[0]), stacked)
    for k in range(3):
        oracle.assert_same(shared[k], oracle.scatter_add(y[0], ids[k], 4))


def test_long_rows_of_index_add(device, rng):
    ids, num_rows = shuffled(rng, [2, 0, 1025, 40_000, 1, 129])
    plan = jax_index.make_plan(ids, num_rows)
    for dtype in ("float32", "float16", "uint8"):
        x = cases.values(rng, (num_rows, 2), dtype)
        y = cases.values(rng, (ids.size, 2), dtype)
        out = jax_index.index_add(jnp.asarray(x), plan, jnp.asarray(y))
        oracle.assert_same(out, oracle.index_add(x, y, ids))


@pytest.mark.parametrize("pattern", ["random", "hubs", "edges of chunks", "edges of groups"])
def test_one_answer_for_every_way_of_calling(device, rng, pattern):
    ids, num_rows = cases.PATTERNS[pattern]
    plan = jax_index.make_plan(ids, num_rows, mode="drop")
    y = cases.values(rng, (4, ids.size, 6), "float32")
    expected = np.stack([oracle.scatter_add(v, ids, num_rows) for v in y])
    device_y = jnp.asarray(y)
    call = lambda v, p=plan: jax_index.scatter_add(v, p)
    # Eager and jitted, looped, batched and scanned; from run to run.
    for _ in range(2):
        for k in range(4):
            oracle.assert_same(call(device_y[k]), expected[k])
            oracle.assert_same(jax.jit(call)(device_y[k]), expected[k])
    oracle.assert_same(jax.vmap(call)(device_y), expected)
    oracle.assert_same(jax.lax.map(call, device_y), expected)
    moved = jax.vmap(call, in_axes=2, out_axes=2)(jnp.moveaxis(device_y, 0, 2))
    oracle.assert_same(jnp.moveaxis(moved, 2, 0), expected)
    # Along another axis, and any part of the features alone.
    along = jax_index.scatter_add(jnp.moveaxis(device_y, 1, 2), plan, axis=2)
    oracle.assert_same(jnp.moveaxis(along, 2, 1), expected)
    for k in range(6):
        oracle.assert_same(call(device_y[0, :, k]), expected[0, :, k])
    # The same plan without its flags, built on the device, or the edges sorted beforehand.
    oracle.assert_same(call(device_y[0], plan.generic), expected[0])
    traced = jax.jit(lambda v, i: jax_index.scatter_add(v, i, num_rows=num_rows))
    oracle.assert_same(traced(device_y[0], jnp.asarray(ids, jnp.int32)), expected[0])
    order = np.asarray(plan.perm)
    in_order = jax_index.make_plan(ids[order], num_rows, mode="drop")
    assert in_order.identity
    oracle.assert_same(call(device_y[0][order], in_order), expected[0])
    oracle.assert_same(call(device_y[0][order], in_order.generic), expected[0])


def test_rows_do_not_depend_on_their_place(device, rng):
    ids, num_rows = cases.PATTERNS["hubs"]
    y = jnp.asarray(cases.values(rng, (ids.size, 3), "float32"))
    first = np.asarray(jax_index.scatter_add(y, ids, num_rows=num_rows))
    other = rng.permutation(num_rows)
    again = np.asarray(jax_index.scatter_add(y, other[ids], num_rows=num_rows))
    oracle.assert_same(again[other], first)


def test_the_gradient_has_the_documented_order_too(device, rng):
    ids, num_rows = cases.PATTERNS["hubs"]
    plan = jax_index.make_plan(ids, num_rows)
    ct = cases.values(rng, (ids.size, 4), "float32")
    x = jnp.zeros((num_rows, 4), jnp.float32)
    (eager,) = jax.vjp(lambda v: jax_index.gather(v, plan), x)[1](jnp.asarray(ct))
    jitted = jax.jit(lambda v, c: jax.vjp(lambda u: jax_index.gather(u, plan), v)[1](c)[0])
    expected = oracle.scatter_add(ct, ids, num_rows)
    oracle.assert_same(eager, expected)
    oracle.assert_same(jitted(x, jnp.asarray(ct)), expected)


def test_a_sum_starts_at_plus_zero(device):
    y = jnp.full((3, 2), -0.0, jnp.float32)
    for ids in ([0, 0, 1], [0, 1, 2]):
        out = np.asarray(jax_index.scatter_add(y, ids, num_rows=3))
        assert not np.signbit(out).any()
    # x + the sum is -0 + +0 = +0 where there is an edge; where there is none, x stays -0.
    out = np.asarray(jax_index.index_add(y, [0, 0, 1], y))
    assert np.signbit(out).tolist() == [[False, False], [False, False], [True, True]]


NAN_BITS = [
    ("float32", np.uint32, [0x7FA00001, 0xFFA12345, 0x7FC00000, 0xFFFFFFFF]),
    ("bfloat16", np.uint16, [0x7F81, 0xFF95, 0x7FC0, 0xFFFF]),
    ("float16", np.uint16, [0x7C01, 0xFD55, 0x7E00, 0xFFFF]),
    ("float8_e5m2", np.uint8, [0x7D, 0xFD, 0x7E, 0xFF]),
]


@pytest.mark.parametrize(("dtype", "word", "payloads"), NAN_BITS, ids=lambda v: str(v)[:14])
@pytest.mark.parametrize("width", [1, 5, 40])
def test_a_row_without_an_edge_keeps_its_bits(device, dtype, word, payloads, width):
    raw = np.repeat(np.array([*payloads, 0x40], word)[:, None], width, axis=1)
    x = jnp.asarray(raw.view(dtype))
    y = jnp.ones((1, width), dtype)
    out = np.asarray(jax_index.index_add(x, [4], y)).view(word)
    np.testing.assert_array_equal(out[:4], raw[:4])
    assert (out[4] != raw[4]).all()
    moved = np.asarray(jax_index.gather(x, [3, 1, 0, 2])).view(word)
    np.testing.assert_array_equal(moved, raw[[3, 1, 0, 2]])


def test_index_add_rounds_once(device):
    # 256 + 1 is a tie of bfloat16: the sum of the edges must not be rounded on its own.
    x = jnp.asarray([256.0], jnp.bfloat16)
    y = jnp.asarray([1.0, 2.0**-7], jnp.bfloat16)
    assert jax_index.index_add(x, [0, 0], y).tolist() == [258.0]
    small = jnp.full((512,), 2.0**-9, jnp.bfloat16)
    plan = jax_index.make_plan(np.zeros(512, int), 1)
    assert jax_index.index_add(x, plan, small).tolist() == [256.0]
    assert jax_index.index_add(jnp.asarray([1.0], jnp.bfloat16), plan, small).tolist() == [2.0]


@pytest.mark.parametrize("count", [4, 300_000])
def test_subnormals_are_kept(device, rng, count):
    tiny = rng.integers(1, 2**20, (count, 2), dtype=np.uint32).view(np.float32)
    ids = np.arange(count) % 64
    plan = jax_index.make_plan(ids, 64)
    expected = oracle.scatter_add(tiny, ids, 64)
    assert (expected[:4] > 0).all()
    oracle.assert_same(jax_index.scatter_add(jnp.asarray(tiny), plan), expected)
    inside = jax.jit(lambda v: jax_index.scatter_add(v, plan))
    oracle.assert_same(inside(jnp.asarray(tiny)), expected)
    x = tiny[:64] if count > 64 else np.repeat(tiny, 16, axis=0)
    oracle.assert_same(
        jax_index.index_add(jnp.asarray(x), plan, jnp.asarray(tiny)), oracle.index_add(x, tiny, ids)
    )
    oracle.assert_same(jax_index.gather(jnp.asarray(x), plan), oracle.gather(x, ids))


def test_subnormals_of_narrow_floats_are_kept(device, rng):
    for dtype, word in (("float16", np.uint16), ("bfloat16", np.uint16), ("float8_e5m2", np.uint8)):
        tiny = rng.integers(1, 4, (400,), dtype=word).view(dtype)
        ids = np.arange(400) % 200
        expected = oracle.scatter_add(tiny, ids, 200)
        out = jax_index.scatter_add(jnp.asarray(tiny), ids, num_rows=200)
        assert (np.asarray(out).view(word) > 1).all()
        oracle.assert_same(out, expected)


def test_promotion_rounds_once_and_keeps_subnormals(device):
    with oracle.x64(), jax.numpy_dtype_promotion("standard"):
        tiny = np.array([1e-40, -3e-45], np.float32)
        out = jax_index.index_add(jnp.zeros(2, jnp.float64), [0, 1], jnp.asarray(tiny))
        oracle.assert_same(out, tiny.astype(np.float64))
        out = jax_index.index_add(jnp.asarray(tiny), [0], jnp.zeros(1, jnp.float64))
        oracle.assert_same(out, tiny.astype(np.float64))
        # By way of float32, this integer would become the even neighbour below.
        above_tie = jnp.asarray([2**24 + 2**16 + 1], jnp.int64)
        out = jax_index.index_add(jnp.zeros(1, jnp.bfloat16), [0], above_tie)
        oracle.assert_same(out, np.array([2.0**24 + 2.0**17], jnp.bfloat16))


def run_program(*arguments, **environment):
    """Run bits_program.py on the CPU in a process of its own."""
    program = Path(__file__).with_name("bits_program.py")
    settings = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def usual_run():
    return run_program()


@pytest.mark.skipif(_native.CPU.module is None, reason="bits are promised by the kernels alone")
@pytest.mark.parametrize(
    ("arguments", "environment", "target"),
    [
        ((), {}, None),
        (("1",), {"NPROC": "1"}, None),
        ((), {"NPROC": "7"}, None),
        ((), {"JAX_INDEX_CPU_TARGET": "portable"}, "portable"),
        (("1",), {"JAX_INDEX_CPU_TARGET": "avx2", "NPROC": "1"}, "avx2"),
    ],
    ids=["again", "one thread", "seven threads", "portable", "avx2, one thread"],
)
def test_bits_do_not_depend_on_the_process(usual_run, arguments, environment, target):
    run = run_program(*arguments, **environment)
    if target is not None and run["target"] != target:
        pytest.skip(f"this machine runs {run['target']} where {target} is asked for")
    assert run["digests"] == usual_run["digests"]
    assert run["digests"]["subnormals are kept"] == "True"
    assert run["digests"]["subnormal means are kept"] == "True"


@pytest.mark.parametrize("width", [129, 130, 250])
def test_bytes_in_odd_widths_with_long_rows(device, rng, width):
    """Widths whose bytes do not pair up: one element to a thread, more threads than a block has."""
    for lengths in ([200, 3], [1500, 140, 0, 40]):
        ids, num_rows = shuffled(rng, lengths)
        same_as_oracle(rng, ids, num_rows, (width,), "int8")
