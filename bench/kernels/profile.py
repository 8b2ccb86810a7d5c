# SPDX-License-Identifier: Apache-2.0
"""Kernel times from a profiler's trace: what the device works, without dispatch and gaps.

Several programs share a trace. Each runs its calls and is waited for, then a separator runs, a
small program of a known name; so events belong to a program by their place between separators,
whatever library launched them and whatever its module is called.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.profiler import ProfileData

SHORTEST, MOST, FEWEST = 0.012, 40, 5  # seconds of a program's calls, and how many they may be
BEGIN, SEPARATOR = "bench_trace_begins", "bench_next_program"  # names of the small programs


class Calls(Protocol):
    """Something that can be called on the device and waited for."""

    def __call__(self) -> None:
        """Start one call."""

    def wait(self) -> None:
        """Return once all calls are done."""


@dataclasses.dataclass(frozen=True)
class KernelTime:
    """Microseconds of a call: the median of the sums over its kernels; kernels a call."""

    us: float
    spread: float
    kernels: float
    calls: int

    def record(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "us": self.us,
            "spread": round(self.spread, 4),
            "calls": self.calls,
            "method": "profiler",
            "kernels": self.kernels,
        }


def calls_for(seconds: float) -> int:
    """How many calls of a program that takes so long are traced."""
    return max(FEWEST, min(MOST, math.ceil(SHORTEST / max(seconds, 1e-7))))


def kernel_times(runners: Sequence[Calls], counts: Sequence[int]) -> list[KernelTime | None]:
    """Kernel time of each program, called `counts` times; None where the trace has none of it."""
    begin, separator = _named(BEGIN), _named(SEPARATOR)
    small = jnp.zeros(8, jnp.int32)
    for program in (begin, separator):
        program(small).block_until_ready()
    for runner in runners:
        runner()
        runner.wait()

    def run() -> None:
        begin(small).block_until_ready()  # the first event of a trace may be late or lost
        for k, (runner, count) in enumerate(zip(runners, counts, strict=True)):
            if k:
                separator(small).block_until_ready()
            for _ in range(count):
                runner()
            runner.wait()

    return split_at_separators(traced(run), counts)


@cache
def _named(name: str) -> Any:
    def program(x: Any) -> Any:
        return x + jnp.int32(1)

    program.__name__ = program.__qualname__ = name
    return jax.jit(program)


def split_at_separators(planes: Iterable[Any], counts: Sequence[int]) -> list[KernelTime | None]:
    """Kernel time of each program of a trace, in the order in which they ran."""
    events = sorted(stream_events(planes), key=lambda pair: pair[0].start_ns)
    windows: list[list[float]] = [[]]
    for event, stats in events:
        module = str(stats.get("hlo_module", ""))
        if SEPARATOR in module:
            windows.append([])
        elif BEGIN not in module:
            windows[-1].append(event.duration_ns * 1e-3)
    if len(windows) != len(counts):
        raise RuntimeError(f"the trace has {len(windows)} programs where {len(counts)} ran")
    return [_time_of(us, count) for us, count in zip(windows, counts, strict=True)]


def _time_of(events: list[float], calls: int) -> KernelTime | None:
    """Of the events of so many equal calls, in order."""
    if len(events) < calls:
        return None
    per_call, rest = divmod(len(events), calls)
    if rest:  # calls differ, or events were lost: no call can be told from the next
        return KernelTime(sum(events) / calls, 0.0, len(events) / calls, calls)
    sums = [sum(events[k : k + per_call]) for k in range(0, len(events), per_call)]
    median = statistics.median(sums)
    return KernelTime(median, (max(sums) - min(sums)) / max(median, 1e-9), per_call, calls)


def traced(run: Callable[[], None]) -> list[Any]:
    """The planes of devices of a trace of `run`, which must wait for what it starts."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it would slow every call and fill the trace
    with tempfile.TemporaryDirectory(prefix="jax_index-profile-") as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        if not files:
            raise RuntimeError("the profiler wrote no trace")
        planes = list(ProfileData.from_file(str(files[-1])).planes)
        return [p for p in planes if p.name.startswith("/device:")]


def stream_events(planes: Iterable[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Every event on the streams of devices, and what is known of it.

    A plane also has derived lines ("XLA Modules", "XLA Ops") that repeat the streams' events.
    """
    for plane in planes:
        for line in plane.lines:
            if line.name.startswith("Stream"):
                for event in line.events:
                    yield event, {key: value for key, value in event.stats if key is not None}


class Settled:
    """Calls under the x64 setting that their program was made with."""

    def __init__(self, calls: Calls, x64: bool):
        self._calls, self._x64 = calls, x64

    def _setting(self) -> contextlib.AbstractContextManager[Any]:
        return jax.enable_x64(self._x64)

    def __call__(self) -> None:
        """Start one call."""
        with self._setting():
            self._calls()

    def wait(self) -> None:
        """Return once all calls are done."""
        self._calls.wait()
