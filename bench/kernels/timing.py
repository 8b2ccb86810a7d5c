# SPDX-License-Identifier: Apache-2.0
"""Time of one call on the device.

JAX: calls are dispatched one after another and waited for at the end; each writes into the buffer
of the one before (donation), so nothing is allocated and no page is touched for the first time.
On a CPU the quotient is the time. On a GPU it holds the gaps between calls, some 30 us each, and
the kernels' own time comes from a trace (`profile.py`); for small shapes a program of many calls,
which XLA records as a CUDA graph, also gives the time of a replay (`graph_replay`).
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bench.step_profile import index_instructions

DISPATCH = "dispatch"  # many calls, one wait
REPEATS = 7


@dataclasses.dataclass(frozen=True)
class Timing:
    """Median seconds a call, its spread over the repeats, and how it was found."""

    seconds: float
    spread: float
    calls: int
    method: str

    def record(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "us": self.seconds * 1e6,
            "spread": round(self.spread, 4),
            "calls": self.calls,
            "method": self.method,
        }


def time_calls(
    call: Callable[[], Any], wait: Callable[[], Any], seconds: float, method: str = DISPATCH
) -> Timing:
    """Time `call` for about `seconds`; `wait` returns once all calls are done."""
    call()
    wait()
    start = time.perf_counter()
    call()
    wait()
    one = time.perf_counter() - start
    if one > seconds:
        return Timing(one, 0.0, 1, method)
    repeats, calls = max(2, int(seconds / one)), 1
    if repeats > REPEATS:
        start = time.perf_counter()
        for _ in range(3):
            call()
        wait()
        three = (time.perf_counter() - start) / 3  # a call alone also pays for the wait
        repeats, calls = REPEATS, max(1, min(int(seconds / REPEATS / max(three, 1e-7)), 2000))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        times.append((time.perf_counter() - start) / calls)
    median = statistics.median(times)
    return Timing(median, (max(times) - min(times)) / median, calls * repeats, method)


class JaxCalls:
    """A jitted op that writes into the buffers of its last result, over rotating operands.

    Result and operand are arrays or trees of them.
    """

    def __init__(self, program: Any, out: Any, operands: Sequence[Any], plan: Any):
        self.program, self.operands, self.plan = program, list(operands), plan
        self.out = out
        self._next = 0

    def __call__(self) -> None:
        """Start one call."""
        operand = self.operands[self._next % len(self.operands)]
        self._next += 1
        self.out = self.program(self.out, operand, self.plan)

    def wait(self) -> None:
        """Return once the last call is done."""
        jax.block_until_ready(self.out)

    @property
    def nbytes(self) -> int:
        """Memory of operands and result."""
        return sum(x.nbytes for x in jax.tree.leaves((self.out, self.operands)))


def jit_into(fn: Callable[[Any, Any], Any], name: str) -> Any:
    """Jit fn(operand, plan) as name(buffer, operand, plan): its result takes the buffer's place."""

    def run(buffer: Any, operand: Any, plan: Any) -> Any:
        del buffer
        return fn(operand, plan)

    run.__name__ = run.__qualname__ = name
    return jax.jit(run, donate_argnums=0, keep_unused=True)


def graph_replay(
    fn: Callable[[Any, Any], Any], operand: jax.Array, plan: Any, seconds: float, length: int = 24
) -> dict[str, float]:
    """Microseconds a call inside one program of `length` calls, less what chains them.

    Every call depends on the one before through one element of its operand, written in place; a
    program of these writes alone is subtracted. XLA records so many calls as one CUDA graph.
    """

    def chained(keep: Callable[[Any], Any]) -> Callable[[Any, Any, Any], Any]:
        def chain(x: Any, y: Any, plan: Any) -> Any:
            for _ in range(length):
                x = keep(_touch(x, y))
                y = keep(fn(x, plan))
            return x, y

        return chain

    def empty(x: Any, y: Any, plan: Any) -> Any:
        del plan
        for _ in range(length):
            x = _touch(x, y)
            # A changed element of y keeps the writes apart, at the price of one more of them.
            y = _touch(y, x)
        return x, y

    def compiled(program: Callable[[Any, Any, Any], Any]) -> Any:
        jitted = jax.jit(program, donate_argnums=(0, 1), keep_unused=True)
        return jitted.lower(operand, jax.eval_shape(fn, operand, plan), plan).compile()

    calls = compiled(chained(lambda x: x))
    if calls.as_text().count('custom_call_target="jax_index') < length:
        # XLA's own gather or scatter: a barrier keeps the write from being fused into it.
        calls = compiled(chained(jax.lax.optimization_barrier))
        found = len(index_instructions(calls.as_text()))
        copies = len(re.findall(r"(?<![\w-])copy\(", calls.as_text()))
        if found < length or copies >= length:
            raise RuntimeError(f"XLA kept {found} of {length} calls, with {copies} copies")
    times = []
    for program in (calls, compiled(empty)):
        state = [operand + 0, fn(operand, plan)]

        def call(program: Any = program, state: list[Any] = state) -> None:
            state[:] = program(*state, plan)

        def wait(state: list[Any] = state) -> None:
            state[1].block_until_ready()

        times.append(time_calls(call, wait, seconds / 2).seconds / length * 1e6)
    whole, empty_us = times[0], times[1] / 2  # the empty chain has two writes where this has one
    return {"us": whole - empty_us, "with_chain_us": whole, "chain_us": empty_us}


def _touch(x: Any, y: Any) -> Any:
    """Write the first element of y into x."""
    corner = jax.lax.slice(y, (0,) * y.ndim, (1,) * y.ndim).reshape((1,) * x.ndim)
    return jax.lax.dynamic_update_slice(x, corner, (0,) * x.ndim)
