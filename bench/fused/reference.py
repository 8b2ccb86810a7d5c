# SPDX-License-Identifier: Apache-2.0
"""Results against float64, before anything is timed.

Softmaxes subtract no maximum here: random scores are small, and float64 has room for their exp. A
maximum itself is checked by its property, for it is exact in any dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from bench.fused.inputs import Inputs
from bench.fused.ops import GRADIENTS, row_sums, rows_at, with_gradients

# Largest difference, over the magnitude of the element plus the mean magnitude of its array.
TOLERANCE = {"float32": 2e-4, "float64": 1e-11, "bfloat16": 1.5e-2, "float16": 2e-3}
# Gradients take up what narrow floats lost in results: attention's contain the rounded output.
WITH_GRADIENTS = {"float32": 1, "float64": 1, "bfloat16": 4, "float16": 4}


def _spmm(ends: Any, n: int, x: Any, weights: Any = None) -> Any:
    y = rows_at(x, ends[0])
    return row_sums(y if weights is None else y * weights[:, None], ends[1], n)


def _sddmm(ends: Any, n: int, x: Any, y: Any) -> Any:
    del n
    return jnp.sum(rows_at(x, ends[0]) * rows_at(y, ends[1]), axis=-1)


def _softmax(ends: Any, n: int, scores: Any) -> Any:
    p = jnp.exp(scores)
    return p / rows_at(row_sums(p, ends[1], n), ends[1])


def _attention(ends: Any, n: int, q: Any, k: Any, v: Any) -> Any:
    scores = jnp.sum(rows_at(q, ends[1]) * rows_at(k, ends[0]), axis=-1)
    a = _softmax(ends, n, scores / math.sqrt(q.shape[-1]))
    return row_sums(a[..., None] * rows_at(v, ends[0]), ends[1], n)


ANSWERS: dict[str, Callable[..., Any]] = {
    "spmm": _spmm,
    "spmm weighted": _spmm,
    "sddmm": _sddmm,
    "edge_softmax": _softmax,
    "graph_attention": _attention,
    "segment_softmax": _softmax,
}


class Reference:
    """The float64 answer of one line, made once for all implementations."""

    def __init__(self, inputs: Inputs):
        gradients = inputs.op.primal is not None
        self.allowed = TOLERANCE[inputs.line.dtype]
        if gradients:
            self.allowed *= WITH_GRADIENTS[inputs.line.dtype]
        self._ends, self._n = inputs.ends.ids, inputs.num_rows
        self._operands = inputs.operands[0]
        self._forward = inputs.line.op.removesuffix(GRADIENTS)
        self._want: Any = None
        if self._forward != "segment_max":
            with jax.enable_x64(True):
                self._want = _answer(self._forward, gradients, self._n, self._ends, *self._operands)

    def error(self, result: Any) -> float:
        """Largest error of an element of any array of the result; infinity for a NaN."""
        given = result if isinstance(result, tuple) else (result,)
        if self._forward == "segment_max":
            data, *ct = self._operands
            return float(_error_of_maxima(self._n, self._ends[1], data, ct, given))
        with jax.enable_x64(True):
            return max(
                float(_error(have.reshape(want.shape), want))
                for have, want in zip(given, self._want, strict=True)
            )


@partial(jax.jit, static_argnums=(0, 1, 2))
def _answer(name: str, gradients: bool, n: int, ends: Any, *operands: Any) -> tuple[Any, ...]:
    wide = [operand.astype(jnp.float64) for operand in operands]
    fn = partial(ANSWERS[name], ends, n)
    return with_gradients(fn)(*wide) if gradients else (fn(*wide),)


@jax.jit
def _error(have: Any, want: Any) -> Any:
    size = jnp.abs(want)
    relative = jnp.abs(have.astype(want.dtype) - want) / (size + jnp.mean(size))
    return jnp.max(jnp.where(jnp.isnan(relative), jnp.inf, relative))


@partial(jax.jit, static_argnums=0)
def _error_of_maxima(n: int, ids: Any, data: Any, ct: Any, given: Any) -> Any:
    """Infinity unless each row with an edge is reached by one and exceeded by none."""
    largest = rows_at(given[0], ids)
    reached = data == largest
    count = row_sums(reached.astype(jnp.float32), ids, n)
    occupied = row_sums(jnp.ones(len(ids)), ids, n) > 0
    right = jnp.all(data <= largest) & jnp.all((count > 0) | ~occupied[:, None])
    error = jnp.where(right, 0.0, jnp.inf)
    if ct:  # the cotangent is shared among those that reach the maximum
        share = ct[0].astype(jnp.float32) / jnp.maximum(count, 1)
        error += _error(given[1], jnp.where(reached, rows_at(share, ids), 0))
    return error
