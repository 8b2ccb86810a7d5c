# SPDX-License-Identifier: Apache-2.0
"""The ops that are measured: operands, jax_index, and the composition that XLA is given.

A composition takes ends = (senders, receivers), int32 [m], and n, the number of receivers. An op
"with gradients" returns its result and the cotangents of all operands, for a random cotangent
that is its last operand: forward and backward in one program, as training has them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

HEADS = 4  # of attention: width is heads x features
GRADIENTS = " with gradients"  # ends the name of an op
Shapes = dict[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class FusedOp:
    """operands(n, m, width) -> shapes; ours(index, *operands); xla(ends, n, *operands).

    on_plan: the index of jax_index is the receivers' plan, not the graph. primal: the op whose
    gradients come with the result here.
    """

    name: str
    operands: Callable[[int, int, int], Shapes]
    ours: Callable[..., Any]
    xla: Callable[..., Any]
    on_plan: bool = False
    primal: FusedOp | None = None

    def shapes(self, n: int, m: int, width: int) -> Shapes:
        """Shapes of all operands, the cotangent last where there is one."""
        found = dict(self.operands(n, m, width))
        if self.primal is not None:
            operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in found.values()]
            ends = (jax.ShapeDtypeStruct((m,), jnp.int32),) * 2
            primal = self.primal.xla
            found["ct"] = jax.eval_shape(lambda e, *o: primal(e, n, *o), ends, *operands).shape
        return found


def with_gradients(fn: Callable[..., Any]) -> Callable[..., Any]:
    """fn(*operands) -> (result, *cotangents); takes the result's cotangent last."""

    def run(*operands: Any) -> tuple[Any, ...]:
        *inputs, ct = operands
        out, pull = jax.vjp(fn, *inputs)
        return (out, *pull(ct))

    return run


# --- The compositions ---------------------------------------------------------------------------


def rows_at(x: Any, ids: Any) -> Any:
    """Rows of x at ids that are in range."""
    return x.at[ids].get(mode="promise_in_bounds")


def row_sums(y: Any, ids: Any, n: int) -> Any:
    """Sums of the rows of y by ids that are in range."""
    return jnp.zeros((n, *y.shape[1:]), y.dtype).at[ids].add(y, mode="promise_in_bounds")


def _maxima(y: Any, ids: Any, n: int) -> Any:
    return jax.ops.segment_max(y, ids, n, mode="promise_in_bounds")


def _softmax(scores: Any, ids: Any, n: int) -> Any:
    largest = jax.lax.stop_gradient(_maxima(scores, ids, n))
    p = jnp.exp(scores - rows_at(largest, ids))
    return p / rows_at(row_sums(p, ids, n), ids)


def _xla_spmm(ends: Any, n: int, x: Any, weights: Any = None) -> Any:
    y = rows_at(x, ends[0])
    return row_sums(y if weights is None else y * weights[:, None], ends[1], n)


def _xla_sddmm(ends: Any, n: int, x: Any, y: Any) -> Any:
    del n
    return jnp.sum(rows_at(x, ends[0]) * rows_at(y, ends[1]), axis=-1)


def _xla_attention(ends: Any, n: int, q: Any, k: Any, v: Any) -> Any:
    senders, receivers = ends
    scores = jnp.sum(rows_at(q, receivers) * rows_at(k, senders), axis=-1)
    a = _softmax(scores / math.sqrt(q.shape[-1]), receivers, n)
    return row_sums(a[..., None] * rows_at(v, senders), receivers, n)


# --- jax_index ----------------------------------------------------------------------------------


def _library() -> Any:
    import jax_index  # here, so that the list of ops can be read where it is not installed

    return jax_index


def _nodes(*names: str) -> Callable[[int, int, int], Shapes]:
    return lambda n, m, width: dict.fromkeys(names, (n, width))


def _heads(*names: str) -> Callable[[int, int, int], Shapes]:
    return lambda n, m, width: dict.fromkeys(names, (n, HEADS, width // HEADS))


FORWARD = (
    FusedOp(
        "spmm weighted",
        lambda n, m, width: {"x": (n, width), "weights": (m,)},
        lambda graph, x, w: _library().spmm(graph, x, w),
        _xla_spmm,
    ),
    FusedOp("spmm", _nodes("x"), lambda graph, x: _library().spmm(graph, x), _xla_spmm),
    FusedOp("sddmm", _nodes("x", "y"), lambda graph, *o: _library().sddmm(graph, *o), _xla_sddmm),
    FusedOp(
        "edge_softmax",
        lambda n, m, width: {"scores": (m, HEADS)},
        lambda graph, scores: _library().edge_softmax(graph, scores),
        lambda ends, n, scores: _softmax(scores, ends[1], n),
    ),
    FusedOp(
        "graph_attention",
        _heads("q", "k", "v"),
        lambda graph, *qkv: _library().graph_attention(graph, *qkv),
        _xla_attention,
    ),
    FusedOp(
        "segment_max",
        lambda n, m, width: {"data": (m, width)},
        lambda plan, data: _library().segment_max(data, plan),
        lambda ends, n, data: _maxima(data, ends[1], n),
        on_plan=True,
    ),
    FusedOp(
        "segment_softmax",
        lambda n, m, width: {"data": (m, width)},
        lambda plan, data: _library().segment_softmax(data, plan),
        lambda ends, n, data: _softmax(data, ends[1], n),
        on_plan=True,
    ),
)


def _differentiated(op: FusedOp) -> FusedOp:
    def ours(index: Any, *operands: Any) -> Any:
        return with_gradients(lambda *inputs: op.ours(index, *inputs))(*operands)

    def xla(ends: Any, n: int, *operands: Any) -> Any:
        return with_gradients(lambda *inputs: op.xla(ends, n, *inputs))(*operands)

    name = op.name + GRADIENTS
    return dataclasses.replace(op, name=name, ours=ours, xla=xla, primal=op)


WITH_GRADIENTS = ("spmm weighted", "graph_attention", "segment_max", "segment_softmax")
OPS: dict[str, FusedOp] = {op.name: op for op in FORWARD}
OPS |= {op.name: op for op in (_differentiated(op) for op in FORWARD if op.name in WITH_GRADIENTS)}
