# SPDX-License-Identifier: Apache-2.0
"""jax_index and XLA: plain, and told that sorted ids are sorted."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version

from bench.kernels.line import Inputs
from bench.kernels.peer import Peer, Prepared, Skip
from bench.kernels.timing import JaxCalls, jit_into, time_calls

SUBJECT = "jax_index"
# A row of so many edges makes a compare-and-swap loop take seconds a call.
CONTENDED_ROW = 10_000
# These versions sum float32 so as well.
FLOAT32_LOOPS = (0, 10, 2) <= jaxlib.version.__version_info__ < (0, 11, 1)


def xla_fn(op: str, num_rows: int, width: int, dtype: str, is_sorted: bool) -> Callable[..., Any]:
    """The op in XLA's fastest spelling: fn(operand, ids)."""
    shape = (num_rows,) if width == 1 else (num_rows, width)

    def gather(x: Any, ids: Any) -> Any:
        return x.at[ids].get(mode="promise_in_bounds", indices_are_sorted=is_sorted)

    def scatter_add(y: Any, ids: Any) -> Any:
        zero = jnp.zeros(shape, dtype)
        return zero.at[ids].add(y, mode="promise_in_bounds", indices_are_sorted=is_sorted)

    return _with_gradients(op, gather, scatter_add, shape, dtype)


def jax_index_fn(op: str, num_rows: int, width: int, dtype: str) -> Callable[..., Any]:
    """The op of this package: fn(operand, plan)."""
    import jax_index

    shape = (num_rows,) if width == 1 else (num_rows, width)
    return _with_gradients(op, jax_index.gather, jax_index.scatter_add, shape, dtype)


def _with_gradients(op: str, gather: Any, scatter_add: Any, shape: Any, dtype: str) -> Any:
    def gather_gradient(ct: Any, plan: Any) -> Any:
        # The primal value is not used, so that XLA leaves it out.
        return jax.vjp(lambda x: gather(x, plan), jnp.zeros(shape, dtype))[1](ct)[0]

    def scatter_add_gradient(ct: Any, plan: Any) -> Any:
        edges = plan.shape[0] if isinstance(plan, jax.Array) else plan.num_edges
        y = jnp.zeros((edges, *shape[1:]), dtype)
        return jax.vjp(lambda y: scatter_add(y, plan), y)[1](ct)[0]

    return {
        "gather": gather,
        "scatter_add": scatter_add,
        "gather gradient": gather_gradient,
        "scatter_add gradient": scatter_add_gradient,
    }[op]


@lru_cache(maxsize=64)
def _program(kind: str, name: str, op: str, num_rows: int, width: int, dtype: str) -> Any:
    """One jitted function for all lines of equal shapes, so that XLA compiles it once."""
    if kind == SUBJECT:
        return jit_into(jax_index_fn(op, num_rows, width, dtype), name)
    return jit_into(xla_fn(op, num_rows, width, dtype, kind == "xla-sorted"), name)


def _jax_peer(kind: str, inputs: Inputs, name: str) -> Prepared:
    line, t = inputs.line, inputs.topology
    program = _program(kind, name, line.op, t.num_rows, line.width, line.dtype)
    plan = inputs.plan if kind == SUBJECT else inputs.ids
    result = program(inputs.buffer(), inputs.operands[0], plan)
    result.block_until_ready()
    calls = JaxCalls(program, result, inputs.operands, plan)
    shape = (line.op, t.num_rows, line.width, line.dtype)
    fn = jax_index_fn(*shape) if kind == SUBJECT else xla_fn(*shape, kind == "xla-sorted")
    return Prepared(result, lambda seconds: time_calls(calls, calls.wait, seconds), calls, fn)


def _jax_index(inputs: Inputs, name: str) -> Prepared:
    return _jax_peer(SUBJECT, inputs, name)


def _xla(inputs: Inputs, name: str) -> Prepared:
    _refuse_contended(inputs)
    return _jax_peer("xla", inputs, name)


def _xla_sorted(inputs: Inputs, name: str) -> Prepared:
    if not inputs.topology.is_sorted:
        raise Skip("ids are not sorted")
    _refuse_contended(inputs)
    return _jax_peer("xla-sorted", inputs, name)


def _refuse_contended(inputs: Inputs) -> None:
    line, longest = inputs.line, inputs.topology.longest_row
    loops = line.moves == "scatter" and (
        line.dtype in ("bfloat16", "float16") or (line.dtype == "float32" and FLOAT32_LOOPS)
    )
    if jax.default_backend() == "gpu" and loops and longest > CONTENDED_ROW:
        raise Skip(
            f"XLA sums {line.dtype} in a compare-and-swap loop: seconds a call where "
            f"{longest:,} edges share a row"
        )


PEERS = (
    Peer(SUBJECT, "jax_index", _jax_index),
    Peer("xla", "XLA", _xla),
    Peer("xla-sorted", "XLA sorted", _xla_sorted),
)
