# SPDX-License-Identifier: Apache-2.0
"""Element types, exhaustively: how narrow floats are read and rounded, and how types are promoted.

The reference for rounding is a table of every value of the target type: no conversion routine is
trusted, since some round twice.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_index
from jax_index.ops.convert import convert

from . import cases, oracle

HALVES = ["float16", "bfloat16"]
FLOAT8 = [name for name in cases.FLOAT8 if name != "float8_e8m0fnu"]
SIGNED = [*HALVES, *FLOAT8, *cases.FLOAT4]


@pytest.fixture(autouse=True)
def _quiet_numpy():
    """NumPy warns of casts that overflow or quieten a NaN, of which this file is full."""
    with np.errstate(all="ignore"):
        yield


def patterns(dtype):
    """Every element of a narrow type."""
    if dtype in cases.FLOAT4:
        return np.arange(16, dtype=np.uint8).view(dtype)
    size = np.dtype(dtype).itemsize
    return np.arange(256**size, dtype=f"u{size}").view(dtype)


@functools.cache
def table(dtype):
    """The finite values from 0 up, in order: element k has the bits k."""
    found = patterns(dtype).astype(np.float64)
    half = found[: found.size // 2]
    finite = half[np.isfinite(half)]
    assert (np.diff(finite) > 0).all()
    assert finite[0] == 0
    return finite


def rounded(value, dtype):
    """`value` (float64) in `dtype`: nearest, ties to even bits, as a float64; by the table."""
    value = np.asarray(value, np.float64)
    finite = table(dtype)
    # One step beyond the largest value: what rounds to it overflows.
    beyond = 2 * finite[-1] - finite[-2]
    steps = np.append(finite, beyond)
    size = np.minimum(np.abs(value), beyond)
    low = np.clip(np.searchsorted(steps, size, side="right") - 1, 0, steps.size - 2)
    middle = (steps[low] + steps[low + 1]) / 2
    up = (size > middle) | ((size == middle) & (low % 2 == 1))
    place = np.where(np.isnan(value), 0, low + up)
    overflow = ml_dtypes.finfo(dtype).max
    # Whether a type has infinities or only NaN is asked of the type itself.
    special = np.float32(np.inf).astype(dtype).astype(np.float64)
    if dtype in cases.FLOAT4:
        special = np.float64(overflow)
    out = np.where(place == finite.size, special, np.append(finite, 0)[place])
    out = np.copysign(out, value)
    has_nan = dtype not in cases.FLOAT4
    return np.where(np.isnan(value), np.nan if has_nan else -0.0, out)


def around_ties(dtype, kind):
    """Values of type `kind` at, next to and between every two neighbours of `dtype`."""
    finite = table(dtype)
    beyond = 2 * finite[-1] - finite[-2]
    steps = np.append(finite, [beyond, 4 * beyond])
    middle = (steps[:-1] + steps[1:]) / 2
    at = np.concatenate([steps, middle]).astype(kind)
    near = [at, np.nextafter(at, kind(np.inf)), np.nextafter(at, kind(-np.inf))]
    out = np.concatenate([*near, np.array([np.inf, np.nan, 1e-45, 1e30], kind)])
    return np.concatenate([out, -out])


def converted(value, dtype):
    out = convert(jnp.asarray(value), dtype)
    assert out.dtype == dtype
    return np.asarray(out)


@pytest.mark.parametrize("dtype", SIGNED)
def test_every_pattern_is_decoded(device, dtype):
    every = patterns(dtype)
    oracle.assert_same(converted(every, jnp.float32), every.astype(np.float32))


@pytest.mark.parametrize("dtype", SIGNED)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_rounding_around_every_tie(device, dtype, kind):
    with oracle.x64_for(kind):
        given = around_ties(dtype, kind)
        out = converted(given, dtype).astype(np.float64)
        expected = rounded(given, dtype)
        if dtype.endswith("fnuz"):  # such a type has no -0
            expected = expected + 0.0
        oracle.assert_same(out, expected)


@pytest.mark.parametrize("dtype", SIGNED)
def test_rounding_of_random_floats(device, rng, dtype):
    given = rng.integers(0, 2**32, 1 << 18, dtype=np.uint32).view(np.float32)
    small = rng.standard_normal(1 << 16) * 10.0 ** rng.uniform(-9, 5, 1 << 16)
    given = np.concatenate([given, small.astype(np.float32)])
    expected = rounded(given, dtype)
    if dtype.endswith("fnuz"):
        expected = expected + 0.0
    oracle.assert_same(converted(given, dtype).astype(np.float64), expected)


def test_the_scale_format_is_converted_as_by_xla(device, rng):
    dtype = jnp.float8_e8m0fnu
    every = np.arange(256, dtype=np.uint8).view(dtype)
    oracle.assert_same(converted(every, jnp.float32), every.astype(np.float32))
    given = rng.integers(0, 2**32, 1 << 16, dtype=np.uint32).view(np.float32)
    powers = np.ldexp(np.float32(1), np.arange(-149, 128)).astype(np.float32)
    for factor in (1.0, 1.5, np.nextafter(np.float32(1.5), np.float32(0)), 1.75, 1.9999999):
        with np.errstate(over="ignore"):
            given = np.append(given, powers * np.float32(factor))
    given = np.append(given, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -1e-45]))
    # Between its two least values XLA's own conversion always goes up; here it is the nearest.
    between = (given > 2.0**-127) & (given < 2.0**-126)
    expected = given.astype(dtype)
    expected[between] = np.where(given[between] < 1.5 * 2.0**-127, 2.0**-127, 2.0**-126)
    oracle.assert_same(converted(given, dtype), expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_single_edge_keeps_every_pattern(device, dtype):
    every = patterns(dtype)
    out = jax_index.scatter_add(jnp.asarray(every)[None], [0], num_rows=1)[0]
    # The sum starts at +0, so that -0 becomes +0; nothing else changes.
    expected = np.where(every == 0, np.zeros((), dtype), every)
    oracle.assert_same(out, expected)


@pytest.mark.parametrize("dtype", [*cases.FLOAT8, *cases.FLOAT4])
def test_every_sum_of_two_narrow_floats(device, dtype):
    every = patterns(dtype)
    left, right = (v.reshape(-1) for v in np.meshgrid(every, every))
    out = jax_index.scatter_add(jnp.asarray(np.stack([left, right])), [0, 0], num_rows=1)[0]
    exact = left.astype(np.float32) + right.astype(np.float32)
    if dtype == "float8_e8m0fnu":
        expected = exact.astype(dtype).astype(np.float64)
    else:
        expected = rounded(exact + np.float32(0), dtype)
    oracle.assert_same(np.asarray(out).astype(np.float64), expected)


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_two_halves_round_once(device, rng, dtype):
    left, right = rng.integers(0, 2**16, (2, 1 << 18), dtype=np.uint16).view(dtype)
    # Neighbours in size give ties: the second half of the pairs differs by a few bits only.
    near = (left.view(np.uint16) ^ rng.integers(0, 64, left.size, dtype=np.uint16)).view(dtype)
    right = np.where(np.arange(left.size) % 2 == 0, right, near)
    out = jax_index.scatter_add(jnp.asarray(np.stack([left, right])), [0, 0], num_rows=1)[0]
    exact = left.astype(np.float32) + right.astype(np.float32)
    oracle.assert_same(np.asarray(out).astype(np.float64), rounded(exact + np.float32(0), dtype))


def rounded_integer(value, digits):
    """A Python integer rounded to `digits` binary digits, ties to even."""
    sign, size = (-1 if value < 0 else 1), abs(value)
    drop = max(0, size.bit_length() - digits)
    kept, lost = size >> drop, size & ((1 << drop) - 1)
    half = 1 << (drop - 1) if drop else 1
    kept += lost > half or (lost == half and kept % 2 == 1)
    return sign * (kept << drop)


def interesting_integers(rng, dtype):
    info = ml_dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max)
    found = [low, low + 1, high - 1, high, 0, 1, 2, 3]
    for power in range(info.bits):
        for delta in (-2, -1, 0, 1, 2):
            found += [2**power + delta, -(2**power) + delta, 3 * 2**power // 2 + delta]
            # Halves of the last kept place of each float, with the far bits of a second rounding.
            for digits in (4, 8, 11, 24, 53):
                tie = 2**power + (2**power >> digits)
                found += [tie + delta, tie + (2**power >> (digits - 1)) + delta]
    found += [
        int(v)
        for v in rng.integers(low, high, 500, endpoint=True, dtype=np.int64 if low else np.uint64)
    ]
    kept = [v for v in found if low <= v <= high]
    store = np.int8 if info.bits < 8 else np.dtype(dtype)
    return np.array(kept, np.int64 if low else np.uint64).astype(store).astype(dtype), kept


@pytest.mark.parametrize("source", cases.INTEGERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "float8_e5m2"])
def test_integers_become_floats_by_one_rounding(device, rng, source, dtype):
    with oracle.x64():
        given, exact = interesting_integers(rng, source)
        digits = ml_dtypes.finfo(dtype).nmant + 1
        nearest = np.array([float(rounded_integer(v, digits)) for v in exact])
        oracle.assert_same(converted(given, dtype), nearest.astype(dtype))


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        ("bool", "int32"),
        ("bool", "float32"),
        ("bool", "bfloat16"),
        ("bool", "complex64"),
        ("int8", "int16"),
        ("int8", "int64"),
        ("uint8", "int16"),
        ("uint8", "uint64"),
        ("int16", "int32"),
        ("uint16", "int32"),
        ("int32", "int64"),
        ("uint32", "int64"),
        ("int4", "int8"),
        ("uint4", "int32"),
        ("int2", "int16"),
        ("int32", "complex64"),
        ("float16", "complex64"),
        ("float32", "complex128"),
        ("complex64", "complex128"),
        ("float16", "float64"),
        ("bfloat16", "float64"),
        ("float32", "float64"),
        ("float64", "float32"),
        ("complex128", "complex64"),
    ],
)
def test_other_promotions(device, rng, source, dtype):
    with oracle.x64():
        given = cases.values(rng, (3000,), source)
        if source in ("float32", "float64", "complex64", "complex128"):
            tiny = (np.float64(1e-40) * rng.standard_normal(500)).astype(source)
            given = np.concatenate([given, tiny])
        oracle.assert_same(converted(given, dtype), given.astype(dtype))


def test_complex_to_real_drops_the_imaginary_part(device):
    given = np.array([1 + 2j, -0.0 - 1j, np.nan + 1j, 3 + np.nan * 1j], np.complex64)
    oracle.assert_same(converted(given, jnp.float32), given.real)


def test_conversion_between_narrow_floats_rounds_once(device):
    every = patterns("float16")
    for dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        out = converted(every, dtype).astype(np.float64)
        oracle.assert_same(out, rounded(every.astype(np.float64), dtype))


def test_conversion_keeps_its_input_type_alone():
    x = jnp.arange(3.0)
    assert convert(x, jnp.float32) is x


@pytest.mark.parametrize("count", [0, 1, 16383, 16384, 16385, 50000])
def test_conversion_of_any_size(device, rng, count):
    given = rng.standard_normal(count).astype(np.float32)
    oracle.assert_same(converted(given, jnp.bfloat16), given.astype(jnp.bfloat16))


def test_conversion_is_differentiable(device):
    x = jnp.asarray([1.0, 2.0], jnp.bfloat16)
    out, back = jax.vjp(lambda v: convert(v, jnp.float32), x)
    (ct,) = back(jnp.asarray([1.0 + 2.0**-9, 3.0], jnp.float32))
    assert (out.dtype, ct.dtype) == (jnp.float32, jnp.bfloat16)
    assert ct.tolist() == [1.0, 3.0]
    ints = jnp.arange(2)
    _, back = jax.vjp(lambda v: convert(v, jnp.float32), ints)
    assert back(jnp.ones(2, jnp.float32))[0].dtype == jax.dtypes.float0
    total = jax.grad(lambda v: (convert(v, jnp.complex64) * (2 + 3j)).real.sum())(jnp.ones(2))
    assert total.tolist() == [2.0, 2.0]


def test_conversion_under_vmap(device, rng):
    given = rng.standard_normal((3, 4)).astype(np.float32)
    for axis in (0, 1):
        out = jax.vmap(lambda v: convert(v, jnp.float16), axis, axis)(jnp.asarray(given))
        oracle.assert_same(out, given.astype(np.float16))
