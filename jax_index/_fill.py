# SPDX-License-Identifier: Apache-2.0
"""The fill value of gather, as bits: kernels copy it and never read it as a number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _check, _storage


def words(op: str, value: Any, dtype: Any) -> tuple[int, int]:
    """Return the bits of the fill element as two 64-bit words."""
    if type(value) is int and value == 0 and _storage.has_zero(dtype):
        return (0, 0)
    expected = f"a scalar that {dtype} can hold"
    fix = "Pass a Python or NumPy scalar of that dtype."
    if not _is_scalar(value) or _storage.is_key(dtype):
        fix = "Pass a Python or NumPy scalar: it is part of the program."
        _check.fail(TypeError, op, "fill_value", expected, _check.describe(value), fix)
    dtype = np.dtype(dtype)
    if isinstance(value, int) and abs(value) >= 2**63 and jnp.issubdtype(dtype, jnp.inexact):
        try:
            given = np.asarray(float(value))
        except OverflowError:
            _check.fail(ValueError, op, "fill_value", expected, repr(value), fix)
    else:
        given = np.asarray(value)
    real = not jnp.issubdtype(dtype, jnp.complexfloating)
    if given.dtype.kind not in "biufcV" or (real and given.dtype.kind == "c"):
        _check.fail(TypeError, op, "fill_value", expected, _check.describe(value), fix)
    exact = jnp.issubdtype(dtype, jnp.integer) or dtype == np.bool_
    if exact:
        low, high = (0, 1) if dtype == np.bool_ else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
        number = given.item()
        # NaN fails the comparison; what is compared is exact, floats too.
        if not low <= number <= high or number != int(number):
            _check.fail(ValueError, op, "fill_value", expected, repr(value), fix)
        raw = int(number).to_bytes(8, "little", signed=int(number) < 0)[: dtype.itemsize]
    else:
        with np.errstate(all="ignore"):
            stored = given.astype(dtype)
        if not _holds(stored, given):
            _check.fail(ValueError, op, "fill_value", expected, repr(value), fix)
        raw = stored.tobytes()
    raw = raw.ljust(16, b"\0")
    return int.from_bytes(raw[:8], "little"), int.from_bytes(raw[8:], "little")


def _is_scalar(value: Any) -> bool:
    """Whether `value` is one number that is there: no tracer, mask, record or ragged list."""
    if isinstance(value, jax.core.Tracer) or value is np.ma.masked:
        return False
    try:
        array = np.asarray(value)
    except ValueError:
        return False
    return array.ndim == 0 and array.dtype.names is None


def _holds(stored: np.ndarray, given: np.ndarray) -> bool:
    """Whether `stored` is `given` but for rounding: no NaN and no infinity made or lost."""
    if given == 0 and not _storage.has_zero(stored.dtype):
        return True
    if _storage.is_float4(stored.dtype):
        return bool(abs(given.astype(np.float64)) <= jnp.finfo(stored.dtype).max)
    kind = np.complex128 if stored.dtype.kind == "c" else np.float64
    wide, exact = stored.astype(kind), given.astype(kind)
    parts = ((wide.real, exact.real), (wide.imag, exact.imag))
    return all(np.isnan(a) == np.isnan(b) and np.isinf(a) == np.isinf(b) for a, b in parts)
