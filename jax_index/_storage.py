# SPDX-License-Identifier: Apache-2.0
"""Element types that kernels do not read as they are: random keys and numbers under a byte."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

SUB_BYTE_INTEGERS = ("int2", "uint2", "int4", "uint4", "int1", "uint1")


def is_key(dtype: Any) -> bool:
    """Whether `dtype` is that of a random key array."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def is_float4(dtype: Any) -> bool:
    """Whether `dtype` is the four-bit float."""
    return jnp.dtype(dtype).name == "float4_e2m1fn" if not is_key(dtype) else False


@functools.lru_cache
def has_zero(dtype: Any) -> bool:
    """Whether bits that are all 0 mean 0; the unsigned scale format has no zero."""
    return is_key(dtype) or jnp.dtype(dtype).name != "float8_e8m0fnu"


def stored(dtype: Any) -> Any:
    """Return the whole-byte dtype that elements of a numeric `dtype` are stored in."""
    if is_float4(dtype):
        return jnp.dtype("uint8")
    name = jnp.dtype(dtype).name
    if name in SUB_BYTE_INTEGERS:
        return jnp.dtype("uint8" if name.startswith("u") else "int8")
    return jnp.dtype(dtype)


def encode(x: jax.Array) -> jax.Array:
    """Return `x` with whole-byte elements of the same bits; most dtypes pass unchanged."""
    if is_key(x.dtype):
        return jax.random.key_data(x)
    if is_float4(x.dtype):
        return jax.lax.bitcast_convert_type(x, jnp.uint4).astype(jnp.uint8)
    return x.astype(stored(x.dtype)) if x.dtype.name in SUB_BYTE_INTEGERS else x


def decode(y: jax.Array, like: Any) -> jax.Array:
    """Undo `encode` for a result; `like` has the dtype of the operand that was encoded."""
    if is_key(like.dtype):
        return jax.random.wrap_key_data(y, impl=jax.random.key_impl(like))
    if is_float4(like.dtype):
        return jax.lax.bitcast_convert_type(y.astype(jnp.uint4), like.dtype)
    return y if y.dtype == like.dtype else y.astype(like.dtype)
