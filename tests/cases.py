# SPDX-License-Identifier: Apache-2.0
"""Index patterns, element types and values that the tests share."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np

FLOAT8 = [
    name
    for name in (
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(jnp, name)
]
FLOAT4 = [name for name in ("float4_e2m1fn",) if hasattr(jnp, name)]
NARROW = ["float16", "bfloat16", *FLOAT8, *FLOAT4]
FLOATS = ["float32", "float64", *NARROW]
SUB_BYTE = [name for name in ("int2", "uint2", "int4", "uint4") if hasattr(jnp, name)]
INTEGERS = [f"{sign}int{size}" for sign in ("", "u") for size in (8, 16, 32, 64)] + SUB_BYTE
COMPLEX = ["complex64", "complex128"]
SUMMABLE = [*FLOATS, *INTEGERS, *COMPLEX]
MOVABLE = [*SUMMABLE, "bool"]

ID_TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def _hubs():
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 40, 4000)
    ids[rng.random(4000) < 0.6] = 7
    ids[rng.random(4000) < 0.1] = 39
    return ids, 41


def _lengths(*lengths):
    rng = np.random.default_rng(5)
    ids = np.repeat(np.arange(len(lengths)), lengths)
    return rng.permutation(ids), len(lengths)


def _sorted(pair):
    return np.sort(pair[0]), pair[1]


# name: (ids, num_rows); out-of-range ids are dropped.
PATTERNS = {
    "repeats": (np.array([2, 0, 2, 2, 4]), 5),
    "untouched": (np.array([5, 5, 1]), 8),
    "permutation": (np.array([3, 0, 4, 1, 2]), 5),
    "sorted": (np.array([0, 0, 1, 4, 4, 4]), 6),
    "one row": (np.zeros(70, np.int64), 1),
    "one edge": (np.array([3]), 4),
    "no edges": (np.zeros(0, np.int64), 3),
    "no rows": (np.zeros(0, np.int64), 0),
    "no rows, edges dropped": (np.array([0, -1, 5]), 0),
    "all dropped": (np.array([-1, 9, -1, 4]), 4),
    "padded": (np.array([1, -1, 0, 4, 1, 4, -7, 2**31 - 1, -(2**31)]), 4),
    "sorted, padded last": (np.array([0, 1, 1, 3, 4, 4, 4]), 4),
    "random": (np.random.default_rng(1).integers(-2, 53, 900), 50),
    "hubs": _hubs(),
    "edges of chunks": _lengths(0, 31, 32, 33, 0, 1, 63, 64, 65, 2, 127, 128, 129, 130, 0),
    "edges of groups": _lengths(1023, 1, 1024, 0, 1025, 1026, 2047, 2048, 2049, 3),
    "sorted hubs": _sorted(_hubs()),
}

# Patterns that every element type meets; every pattern is met by PLAIN.
FEW = ["random", "no rows, edges dropped"]
PLAIN = ["float32", "bfloat16"]

TRAILING = [(), (1,), (3,), (16,), (2, 5), (0,), (1, 4, 1)]


def integers(dtype):
    return jnp.issubdtype(dtype, np.integer)


def values(rng, shape, dtype):
    """Random elements over the whole range of `dtype` that sums can bear without overflow."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return rng.random(shape) < 0.5
    if integers(kind):
        info = ml_dtypes.iinfo(kind)
        if info.bits < 8:
            return (
                rng.integers(int(info.min), int(info.max) + 1, shape).astype(np.int8).astype(kind)
            )
        return rng.integers(int(info.min), int(info.max), shape, dtype=kind, endpoint=True)
    if kind.kind == "c":
        part = "float32" if kind == np.complex64 else "float64"
        return values(rng, shape, part) + kind.type(1j) * values(rng, shape, part)
    if kind.name == "float8_e8m0fnu":
        return np.exp2(rng.integers(-20, 20, shape)).astype(np.float32).astype(kind)
    bits = ml_dtypes.finfo(kind).bits
    spread = 6.0 if bits >= 32 else (2.0 if bits == 16 else 0.5)
    size = 10.0 ** rng.uniform(-spread, spread, shape)
    return np.asarray(rng.standard_normal(shape) * size).astype(kind)


def small_integers(rng, shape, dtype):
    """Small whole numbers in `dtype`: their sums and products are exact."""
    return rng.integers(-3, 4, shape).astype(np.float64).astype(dtype)
