# SPDX-License-Identifier: Apache-2.0
"""Ids as users write them, read on the host as integers that no cast has changed."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_index import _check
from jax_index._storage import SUB_BYTE_INTEGERS


def host_ids(op: str, ids: Any, argument: str = "ids") -> np.ndarray:
    """Return concrete ids as a contiguous NumPy array of a native integer dtype, not yet cast."""
    fix = "Pass a one-dimensional list or array of integers."
    if isinstance(ids, jax.Array) and not ids.is_fully_addressable:
        fix = (
            "Gather them first with jax.experimental.multihost_utils.process_allgather(ids, "
            "tiled=True), or build the plan from host ids in every process."
        )
        given = "an array spread over devices of other processes"
        _check.fail(ValueError, op, argument, "fully addressable", given, fix)
    if isinstance(ids, np.ma.MaskedArray):
        fix = f"Fill the masked {argument} and drop them: ids.filled(-1) with mode='drop'."
        _check.fail(TypeError, op, argument, "an integer array", "a masked array", fix)
    try:
        out = np.asarray(ids)
    except ValueError:
        _check.fail(ValueError, op, argument, "one-dimensional", "a ragged sequence", fix)
    except TypeError:
        # Random keys, and lists that hold traced values.
        if not isinstance(ids, jax.Array):
            fix = "Make one array of them first, with jax.numpy.stack."
        _check.fail(TypeError, op, argument, "an integer array", _check.describe(ids), fix)
    if out.ndim == 0 and out.dtype.kind not in "biuf":
        _check.fail(TypeError, op, argument, "an integer array", _check.describe(ids), fix)
    if out.ndim != 1:
        _check.fail(ValueError, op, argument, "one-dimensional", f"shape {out.shape}", fix)
    if out.size == 0 and not isinstance(ids, np.ndarray | jax.Array):
        out = out.astype(np.int32)
    mixed = isinstance(ids, list | tuple) and any(type(i) is bool for i in ids)
    if mixed or out.dtype == np.bool_:
        fix = "Positions of a mask are numpy.flatnonzero(mask)."
        _check.fail(TypeError, op, argument, "an integer array", "dtype bool", fix)
    if out.dtype.kind not in "iu":
        out = _odd_integers(op, argument, ids, out, fix)
    if not out.dtype.isnative:
        out = out.astype(out.dtype.newbyteorder("="))
    if out.size > _check.MAX_SIZE:
        fix = "Split the edges: positions are 32-bit."
        expected = f"at most {_check.MAX_SIZE} entries"
        _check.fail(ValueError, op, argument, expected, f"{out.size} entries", fix)
    return np.ascontiguousarray(out)


def _odd_integers(op: str, argument: str, ids: Any, out: np.ndarray, fix: str) -> np.ndarray:
    """Read integers that NumPy holds as another kind: 4-bit ones, and lists beyond 64 bits."""
    if out.dtype.name in SUB_BYTE_INTEGERS:
        return out.astype(np.int8)
    if not isinstance(ids, np.ndarray | jax.Array):
        # NumPy turns a list with ids beyond int64 into floats or objects. They are out of range
        # whatever num_rows is, so that the nearest 64-bit value stands for them.
        items = list(ids)
        if all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in items):
            low, high = -(2**63), 2**63 - 1
            return np.array([min(max(int(i), low), high) for i in items], np.int64)
    return _check.fail(TypeError, op, argument, "an integer array", f"dtype {out.dtype}", fix)


def entry(given: Any, host: np.ndarray, k: int) -> Any:
    """Entry k as the caller wrote it; `host` holds the nearest 64-bit one."""
    return given[k] if isinstance(given, list | tuple) else host[k]
