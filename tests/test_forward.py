# SPDX-License-Identifier: Apache-2.0
"""What the ops return, for every element type, pattern, shape and axis, against plain NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index

from . import cases, oracle


def make_plan(name):
    ids, num_rows = cases.PATTERNS[name]
    return jax_index.make_plan(ids, num_rows, mode="drop"), ids, num_rows


def test_gather_with_repeats(device):
    x = jnp.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    plan = jax_index.make_plan([2, 0, 2, 2], 3)
    out = jax_index.gather(x, plan)
    assert out.tolist() == [[5.0, 6.0], [1.0, 2.0], [5.0, 6.0], [5.0, 6.0]]


def test_scatter_add_with_duplicates_and_untouched_rows(device):
    y = jnp.asarray([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    plan = jax_index.make_plan([3, 1, 3], 5)
    out = jax_index.scatter_add(y, plan)
    assert out.tolist() == [[0, 0], [2, 20], [0, 0], [5, 50], [0, 0]]
    # A row with no edge is +0, never -0.
    assert not np.signbit(np.asarray(out)[[0, 2, 4]]).any()


def test_index_add_adds_duplicates_and_keeps_untouched_rows(device):
    x = jnp.asarray([10.0, 20.0, 30.0, 40.0])
    plan = jax_index.make_plan([3, 1, 3], 4)
    assert jax_index.index_add(x, plan, jnp.asarray([1.0, 2.0, 4.0])).tolist() == [10, 22, 30, 45]


EVERY_DTYPE = [(dtype, pattern) for dtype in cases.MOVABLE for pattern in cases.FEW]
EVERY_PATTERN = [(dtype, pattern) for dtype in cases.PLAIN for pattern in cases.PATTERNS]
TABLE = list(dict.fromkeys(EVERY_DTYPE + EVERY_PATTERN))
SUMS = [(dtype, pattern) for dtype, pattern in TABLE if dtype != "bool"]


@pytest.mark.parametrize(("dtype", "pattern"), TABLE)
def test_gather(device, rng, dtype, pattern):
    plan, ids, num_rows = make_plan(pattern)
    with oracle.x64_for(dtype):
        x = cases.values(rng, (num_rows, 3), dtype)
        out = jax_index.gather(jnp.asarray(x), plan)
        assert not out.weak_type
        oracle.assert_same(out, oracle.gather(x, ids))


@pytest.mark.parametrize(("dtype", "pattern"), SUMS)
def test_scatter_add(device, rng, dtype, pattern):
    plan, ids, num_rows = make_plan(pattern)
    with oracle.x64_for(dtype):
        y = cases.values(rng, (ids.size, 3), dtype)
        out = jax_index.scatter_add(jnp.asarray(y), plan)
        assert not out.weak_type
        oracle.assert_same(out, oracle.scatter_add(y, ids, num_rows))


@pytest.mark.parametrize(("dtype", "pattern"), SUMS)
def test_index_add(device, rng, dtype, pattern):
    plan, ids, num_rows = make_plan(pattern)
    with oracle.x64_for(dtype):
        x = cases.values(rng, (num_rows, 3), dtype)
        y = cases.values(rng, (ids.size, 3), dtype)
        out = jax_index.index_add(jnp.asarray(x), plan, jnp.asarray(y))
        assert not out.weak_type
        oracle.assert_same(out, oracle.index_add(x, y, ids))


@pytest.mark.parametrize("trailing", cases.TRAILING, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_any_trailing_shape(device, rng, trailing, dtype):
    for pattern in ("repeats", "no edges", "no rows", "no rows, edges dropped"):
        plan, ids, num_rows = make_plan(pattern)
        x = cases.values(rng, (num_rows, *trailing), dtype)
        y = cases.values(rng, (ids.size, *trailing), dtype)
        oracle.assert_same(jax_index.gather(jnp.asarray(x), plan), oracle.gather(x, ids))
        oracle.assert_same(
            jax_index.scatter_add(jnp.asarray(y), plan), oracle.scatter_add(y, ids, num_rows)
        )
        oracle.assert_same(
            jax_index.index_add(jnp.asarray(x), plan, jnp.asarray(y)), oracle.index_add(x, y, ids)
        )


@pytest.mark.parametrize("axis", [1, 2, -1, -2, -3])
@pytest.mark.parametrize("dtype", ["float32", "int16", "complex64"])
def test_any_axis(device, rng, axis, dtype):
    plan, ids, num_rows = make_plan("random")
    x_shape, y_shape = [3, 4, 5], [3, 4, 5]
    x_shape[axis], y_shape[axis] = num_rows, ids.size
    x, y = cases.values(rng, x_shape, dtype), cases.values(rng, y_shape, dtype)
    oracle.assert_same(
        jax_index.gather(jnp.asarray(x), plan, axis=axis), oracle.gather(x, ids, axis)
    )
    oracle.assert_same(
        jax_index.scatter_add(jnp.asarray(y), plan, axis=axis),
        oracle.scatter_add(y, ids, num_rows, axis),
    )
    oracle.assert_same(
        jax_index.index_add(jnp.asarray(x), plan, jnp.asarray(y), axis=axis),
        oracle.index_add(x, y, ids, axis),
    )


def test_axis_may_be_a_numpy_integer(device, rng):
    x = jnp.asarray(rng.standard_normal((2, 3)), jnp.float32)
    out = jax_index.gather(x, [2, 0], axis=np.int64(1))
    oracle.assert_same(out, np.asarray(x)[:, [2, 0]])


@pytest.mark.parametrize("width", [1, 2, 4, 5, 7, 8, 15, 16, 31, 33, 64, 127, 200])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_any_width(device, rng, width, dtype):
    plan, ids, num_rows = make_plan("random")
    x = cases.values(rng, (num_rows, width), dtype)
    y = cases.values(rng, (ids.size, width), dtype)
    oracle.assert_same(jax_index.gather(jnp.asarray(x), plan), oracle.gather(x, ids))
    oracle.assert_same(
        jax_index.scatter_add(jnp.asarray(y), plan), oracle.scatter_add(y, ids, num_rows)
    )
    oracle.assert_same(
        jax_index.index_add(jnp.asarray(x), plan, jnp.asarray(y)), oracle.index_add(x, y, ids)
    )


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_gather_of_random_keys(device, impl):
    keys = jax.random.split(jax.random.key(0, impl=impl), 6).reshape(3, 2)
    out = jax_index.gather(keys, jax_index.make_plan([2, 0, 2], 3))
    assert out.dtype == keys.dtype
    assert out.shape == (3, 2)
    oracle.assert_same(jax.random.key_data(out), np.asarray(jax.random.key_data(keys))[[2, 0, 2]])
    along = jax_index.gather(keys, [1, 1, 0], axis=1)
    oracle.assert_same(
        jax.random.key_data(along), np.asarray(jax.random.key_data(keys))[:, [1, 1, 0]]
    )
    assert jax.random.key_data(jax_index.gather(keys, [-1], mode="drop")).sum() == 0


FILLS = [
    ("float32", -1.5, -1.5),
    ("float32", np.nan, np.nan),
    ("float32", -np.inf, -np.inf),
    ("float32", -0.0, -0.0),
    ("float32", np.float16(2.5), 2.5),
    ("float32", True, 1.0),
    ("bfloat16", 3, 3),
    ("float16", 1e-7, 1e-7),
    ("float8_e4m3fn", -2.0, -2.0),
    ("float8_e5m2", np.inf, np.inf),
    ("float8_e8m0fnu", 4.0, 4.0),
    ("float8_e8m0fnu", 0, 0),
    ("float4_e2m1fn", -6, -6),
    ("complex64", 1 + 2j, 1 + 2j),
    ("complex64", -3.0, -3.0),
    ("bool", True, True),
    ("bool", 1, 1),
    ("int8", -128, -128),
    ("uint8", 255, 255),
    ("int32", np.int64(-5), -5),
    ("int32", 7.0, 7),
    ("int4", -8, -8),
    ("uint4", 15, 15),
    ("int2", -2, -2),
    ("uint32", 2**32 - 1, 2**32 - 1),
    ("int64", -(2**63), -(2**63)),
    ("uint64", 2**64 - 1, 2**64 - 1),
    ("float64", 0.1, 0.1),
    ("complex128", 0.1 + 0.7j, 0.1 + 0.7j),
]


@pytest.mark.parametrize(("dtype", "fill", "meaning"), FILLS, ids=lambda v: str(v))
@pytest.mark.parametrize("width", [1, 17])
def test_fill_value(device, rng, dtype, fill, meaning, width):
    ids = np.array([1, -1, 0, 2, 5])
    with oracle.x64_for(dtype):
        x = cases.values(rng, (2, width), dtype)
        out = jax_index.gather(jnp.asarray(x), ids, mode="drop", fill_value=fill)
        oracle.assert_same(out, oracle.gather(x, ids, fill=meaning))


def test_fill_value_of_a_table_without_rows(device):
    x = jnp.zeros((0, 3), jnp.bfloat16)
    out = jax_index.gather(x, [0, -1], mode="drop", fill_value=2.5)
    oracle.assert_same(out, np.full((2, 3), 2.5).astype(jnp.bfloat16))


def test_fill_value_may_be_an_array_of_no_dimensions(device):
    x = jnp.zeros((1,), jnp.float32)
    for fill in (np.float32(2), np.array(2.0), jnp.float32(2)):
        assert jax_index.gather(x, [-1], mode="drop", fill_value=fill).tolist() == [2]


@pytest.mark.parametrize("dtype", ["float8_e8m0fnu"])
def test_a_type_without_zero_gives_what_jax_makes_of_zero(device, dtype):
    # XLA turns 0 into NaN there: so do an empty row and the default fill value.
    zero = np.asarray(jnp.zeros((), dtype))
    y = jnp.asarray([1.0, 2.0]).astype(dtype)
    out = jax_index.scatter_add(y, [0, 2], num_rows=3)
    oracle.assert_same(out[1], zero)
    oracle.assert_same(jax_index.gather(y, [-1, 0], mode="drop")[0], zero)


@pytest.mark.parametrize("dtype", ["bool", "int32", "float32"])
def test_array_likes_are_accepted(device, dtype):
    x = np.array([[0, 1], [1, 0], [1, 1]], dtype)
    for like in (x, x.tolist(), np.asfortranarray(x), x[::-1][::-1]):
        assert jax_index.gather(like, [2, 0]).tolist() == x[[2, 0]].tolist()
    if dtype != "bool":
        for like in (x, x.tolist()):
            total = jax_index.scatter_add(like, [1, 0, 1], num_rows=2)
            assert total.tolist() == [x[1].tolist(), (x[0] + x[2]).tolist()]


def test_results_are_not_weakly_typed(device):
    weak = jnp.broadcast_to(jnp.asarray(2.0), (3,))
    assert weak.weak_type
    plan = jax_index.make_plan([0, 2, 2], 3)
    for call in (
        lambda v: jax_index.gather(v, plan),
        lambda v: jax_index.scatter_add(v, plan),
        lambda v: jax_index.index_add(v, plan, v),
    ):
        assert not call(weak).weak_type
        assert not jax.jit(call)(weak).weak_type
        assert not jax.eval_shape(call, weak).weak_type


def test_raw_ids_equal_a_plan(device, rng):
    ids, num_rows = np.array([3, 0, 3, 1]), 5
    plan = jax_index.make_plan(ids, num_rows)
    x = jnp.asarray(rng.standard_normal((num_rows, 4)), jnp.float32)
    y = jnp.asarray(rng.standard_normal((4, 4)), jnp.float32)
    for raw in (ids, ids.tolist(), jnp.asarray(ids, jnp.int32), tuple(ids.tolist())):
        oracle.assert_same(jax_index.gather(x, raw), jax_index.gather(x, plan))
        oracle.assert_same(
            jax_index.scatter_add(y, raw, num_rows=num_rows), jax_index.scatter_add(y, plan)
        )
        oracle.assert_same(jax_index.index_add(x, raw, y), jax_index.index_add(x, plan, y))


def test_scatter_add_accepts_the_number_of_rows_of_its_plan(device):
    plan = jax_index.make_plan([0, 1], 3)
    assert jax_index.scatter_add(jnp.ones(2), plan, num_rows=np.int64(3)).tolist() == [1, 1, 0]


@pytest.mark.parametrize("dtype", cases.INTEGERS)
def test_integer_sums_wrap(device, dtype):
    with oracle.x64_for(dtype):
        top = int(jnp.iinfo(dtype).max)
        y = np.array([top, 1, top, top, top], "int8" if dtype in cases.SUB_BYTE else dtype)
        y = y.astype(dtype)
        ids = np.array([0, 0, 1, 1, 1])
        out = jax_index.scatter_add(jnp.asarray(y), ids, num_rows=2)
        bits = int(jnp.iinfo(dtype).bits)
        expected = [(top + 1) % 2**bits, (3 * top) % 2**bits]
        assert [int(v) % 2**bits for v in np.asarray(out).tolist()] == expected
