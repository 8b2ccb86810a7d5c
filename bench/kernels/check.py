# SPDX-License-Identifier: Apache-2.0
"""Results against float64, before anything is timed."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ALL_COLUMNS_UP_TO = 2**28  # elements; of larger arrays only some columns are summed in float64
UNIT = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# A sum of 32s over four levels: at most 31 roundings a level, in the accumulator's precision.
SUM_ROUNDINGS = 4 * 31


def tolerance(moves: str, dtype: str) -> float:
    """Largest error, relative to the sum of magnitudes, of a sum that is rounded once."""
    if moves == "gather":
        return 0.0
    accumulator = max(UNIT["float32"] if dtype != "float64" else 0.0, UNIT["float64"])
    return SUM_ROUNDINGS * accumulator + UNIT[dtype]


class Reference:
    """The float64 answer of one line, made once for all implementations."""

    def __init__(self, moves: str, operand: jax.Array, ids: jax.Array, num_rows: int):
        self.moves, self.operand, self.ids = moves, operand, ids
        self.allowed = tolerance(moves, operand.dtype.name)
        if moves == "scatter":
            width = int(np.prod(operand.shape[1:], dtype=np.int64))
            whole = operand.size <= ALL_COLUMNS_UP_TO or width <= 4
            self.columns = None if whole else tuple(sorted({0, 1, width // 2, width - 1}))
            with jax.enable_x64(True):
                self.sums, self.sizes = _row_sums(operand, ids, num_rows, self.columns)

    def error(self, out: jax.Array) -> float:
        """Largest error of an element; for sums relative to the sum of their magnitudes."""
        if self.moves == "gather":
            return float(_gather_error(out, self.operand, self.ids))
        with jax.enable_x64(True):
            return float(_sum_error(out, self.sums, self.sizes, self.columns))


@partial(jax.jit, static_argnums=(2, 3))
def _row_sums(y: Any, ids: Any, num_rows: int, columns: Any) -> Any:
    wide = y.astype(jnp.float64) if columns is None else y[:, list(columns)].astype(jnp.float64)
    zero = jnp.zeros((num_rows, *wide.shape[1:]), jnp.float64)
    add = partial(zero.at[ids].add, mode="promise_in_bounds")
    return add(wide), add(jnp.abs(wide))


@partial(jax.jit, static_argnums=(3,))
def _sum_error(out: Any, sums: Any, sizes: Any, columns: Any) -> Any:
    given = out if columns is None else out[:, list(columns)]
    difference = jnp.abs(given.astype(jnp.float64) - sums)
    # An empty row must be exactly 0; a NaN anywhere gives infinity.
    relative = jnp.where(sizes > 0, difference / sizes, jnp.where(difference > 0, jnp.inf, 0.0))
    return jnp.max(jnp.where(jnp.isnan(relative), jnp.inf, relative))


@jax.jit
def _gather_error(out: Any, x: Any, ids: Any) -> Any:
    want = x.at[ids].get(mode="promise_in_bounds")
    difference = jnp.abs((out - want).astype(jnp.float32)) + 1e-30
    difference = jnp.where(jnp.isnan(difference), jnp.inf, difference)
    return jnp.max(jnp.where(out == want, 0.0, difference))
