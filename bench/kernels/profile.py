# SPDX-License-Identifier: Apache-2.0
"""Kernel times from a profiler trace: exact for kernels that are shorter than their dispatch."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
from jax.profiler import ProfileData

CALLS = 10


class Calls(Protocol):
    """Something that can be called on the device and waited for."""

    def __call__(self) -> None:
        """Start one call."""

    def wait(self) -> None:
        """Return once all calls are done."""


def kernel_microseconds(runners: dict[str, Calls]) -> dict[str, dict[str, float]]:
    """Device time a call of each program, by the name of its jitted function.

    The sum over the kernels of a call, without the gaps between them; kernels a call beside it.
    """
    for runner in runners.values():
        runner()
        runner.wait()

    def run() -> None:
        for runner in runners.values():
            for _ in range(CALLS):
                runner()
            runner.wait()

    spent = by_module(traced(run))
    found = {}
    for name in runners:
        total, count = spent.get(f"jit_{name}", (0.0, 0))
        if count:
            found[name] = {"us": total / CALLS * 1e-3, "kernels": count / CALLS}
    return found


def traced(run: Callable[[], None]) -> list[Any]:
    """The planes of devices of a trace of `run`, which must wait for what it starts."""
    with tempfile.TemporaryDirectory(prefix="jax_index-profile-") as folder:
        with jax.profiler.trace(folder):
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


def by_module(planes: Iterable[Any]) -> dict[str, tuple[float, int]]:
    """Nanoseconds and number of events of each HLO module."""
    spent: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for event, stats in stream_events(planes):
        module = stats.get("hlo_module")
        if module is not None:
            total, count = spent[str(module)]
            spent[str(module)] = (total + event.duration_ns, count + 1)
    return spent
