# SPDX-License-Identifier: Apache-2.0
"""The pure-JAX lowering: the meaning of every op where its kernel is missing.

All tests of this file run without the compiled part, on the CPU. Bits are not promised there, so
the numbers are such that every sum is exact.
"""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import _native
from jax_index.ops.convert import convert

from . import cases, oracle


@pytest.fixture(scope="module", autouse=True)
def _no_compiled_part():
    """The CPU without its compiled part; programs that were compiled before are forgotten."""
    with pytest.MonkeyPatch.context() as patch, jax.default_device(jax.devices("cpu")[0]):
        patch.setattr(_native.CPU, "module", None)
        jax.clear_caches()
        yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _no_warning():
    """That programs are lowered to plain JAX is known here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


EXACT = [dtype for dtype in cases.SUMMABLE if dtype != "float8_e8m0fnu"]


def test_no_kernel_is_called():
    plan = jax_index.make_plan([1, 0, 1], 2)
    program = jax.jit(lambda x: jax_index.scatter_add(jax_index.gather(x, plan), plan))
    assert "@jax_index." not in program.lower(jnp.ones(2)).as_text()


def exact(rng, shape, dtype):
    """Numbers whose sums are exact in every type, and small enough for the narrowest."""
    if dtype in cases.SUB_BYTE or dtype.startswith("uint"):
        return cases.values(rng, shape, dtype)
    scale = 0.5 if dtype in cases.FLOAT4 else 1
    return (
        (rng.integers(-1, 2, shape) * scale)
        .astype("float64" if dtype != "complex64" else dtype)
        .astype(dtype)
    )


@pytest.mark.parametrize("dtype", EXACT)
def test_the_lowering_is_right(rng, dtype):
    ids, num_rows = np.array([4, 0, -1, 4, 2, 9, 4]), 5
    with oracle.x64_for(dtype):
        plan = jax_index.make_plan(ids, num_rows, mode="drop")
        x = exact(rng, (num_rows, 2), dtype)
        y = exact(rng, (ids.size, 2), dtype)
        oracle.assert_same(jax_index.gather(jnp.asarray(x), plan), oracle.gather(x, ids))
        oracle.assert_same(
            jax_index.scatter_add(jnp.asarray(y), plan), oracle.scatter_add(y, ids, num_rows)
        )
        oracle.assert_same(
            jax_index.index_add(jnp.asarray(x), plan, jnp.asarray(y)), oracle.index_add(x, y, ids)
        )


@pytest.mark.parametrize("dtype", [*cases.MOVABLE, "key"])
def test_the_gather_of_every_type(rng, dtype):
    ids = np.array([1, -1, 0, 1, 7])
    if dtype == "key":
        keys = jax.random.split(jax.random.key(0), 2)
        out = jax_index.gather(keys, [1, 1, 0])
        assert (jax.random.key_data(out) == jax.random.key_data(keys)[jnp.array([1, 1, 0])]).all()
        return
    with oracle.x64_for(dtype):
        x = cases.values(rng, (2, 3), dtype)
        out = jax_index.gather(jnp.asarray(x), ids, mode="drop", fill_value=1)
        oracle.assert_same(out, oracle.gather(x, ids, fill=1))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("width", [(), (0,)], ids=str)
def test_the_lowering_of_empty_arrays(rng, shape, width):
    m, n = shape
    ids = np.full(m, -1) if n == 0 else rng.integers(0, n, m)
    plan = jax_index.make_plan(ids, n, mode="drop")
    x, y = exact(rng, (n, *width), "float32"), exact(rng, (m, *width), "float32")
    oracle.assert_same(jax_index.gather(jnp.asarray(x), plan), oracle.gather(x, ids))
    oracle.assert_same(jax_index.scatter_add(jnp.asarray(y), plan), oracle.scatter_add(y, ids, n))
    oracle.assert_same(jax_index.index_add(jnp.asarray(x), plan, y), oracle.index_add(x, y, ids))


def test_the_lowering_under_transformations(rng):
    ids = rng.integers(-1, 6, (3, 7))
    plans = [jax_index.make_plan(each, 5, mode="drop").generic for each in ids]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *plans)
    x = jnp.asarray(exact(rng, (3, 5, 2), "float32"))
    y = jnp.asarray(exact(rng, (3, 7, 2), "float32"))
    for k in range(3):
        expected = oracle.scatter_add(y[k], ids[k], 5)
        oracle.assert_same(jax.vmap(jax_index.scatter_add)(y, stacked)[k], expected)
        alone = jax.vmap(jax_index.scatter_add, (None, 0))(y[0], stacked)[k]
        oracle.assert_same(alone, oracle.scatter_add(y[0], ids[k], 5))
        both = jax.vmap(jax_index.index_add, (None, 0, 1))(x[0], stacked, jnp.moveaxis(y, 0, 1))
        oracle.assert_same(both[k], oracle.index_add(x[0], y[k], ids[k]))
        out = jax_index.scatter_add(jnp.moveaxis(y[k], 0, 1), plans[k], axis=1)
        oracle.assert_same(out.T, expected)
        (slope,) = jax.vjp(lambda v, k=k: jax_index.gather(v, plans[k]), x[k])[1](y[k])
        oracle.assert_same(slope, expected)
    nested = jax.vmap(jax.vmap(jax_index.gather, (None, 0)), (0, None))(x, stacked)
    oracle.assert_same(nested[2, 1], oracle.gather(x[2], ids[1]))
    traced = jax.jit(lambda v, i: jax_index.scatter_add(v, i, num_rows=5))(y[0], ids[0])
    oracle.assert_same(traced, oracle.scatter_add(y[0], ids[0], 5))


def test_the_lowering_accumulates_wide_and_skips_what_is_dropped():
    ones = jnp.ones(4096, jnp.float16)
    plan = jax_index.make_plan(np.zeros(4096, int), 1)
    assert jax_index.scatter_add(ones, plan).tolist() == [4096]
    y = jnp.asarray([1.0, jnp.nan, 2.0])
    assert jax_index.scatter_add(y, [0, -1, 0], num_rows=1, mode="drop").tolist() == [3]
    garbage = jax.tree.map(lambda leaf: leaf * 0 - 7, plan.generic)
    assert jax_index.scatter_add(ones, garbage).shape == (1,)
    assert jax_index.gather(jnp.ones(1), garbage).tolist() == [0] * 4096


def test_the_conversion():
    x = jnp.asarray([0.0, 1.5, -3.0, 6.0])
    for dtype in ("bfloat16", "float8_e5m2", "float4_e2m1fn", "complex64"):
        out = convert(x, dtype)
        oracle.assert_same(out, np.asarray(x).astype(dtype))
        oracle.assert_same(convert(out, jnp.float32), np.asarray(x))
    oracle.assert_same(convert(jnp.asarray([1, -2]).astype("int4"), jnp.int32), np.int32([1, -2]))
