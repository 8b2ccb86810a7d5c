# SPDX-License-Identifier: Apache-2.0
"""Programs of JAX that wait for a trace of their kernels; several lines share one.

A trace costs more than the calls in it, so programs are kept, with their arrays, until those take
too much memory or nothing is left to measure.
"""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import jax

from bench.kernels import profile
from bench.kernels.timing import JaxCalls

Record = dict[str, Any]
HELD_BYTES, HELD_SHARE = 12e9, 0.1  # of operands and results; never more of the device's memory
HELD_PROGRAMS = 40
LONGEST = 0.02  # seconds a call: of more, a dispatch is no part, and loops could fill the trace
GIVE_UP = 2  # traces that fail in a row


@dataclasses.dataclass
class _Program:
    record: Record
    peer: str
    calls: JaxCalls
    x64: bool


class Pending:
    """Programs whose dispatched time is known and whose kernels' time is to come."""

    def __init__(self) -> None:
        self._programs: list[_Program] = []
        self._failed = 0
        self._unseen = 0
        self._why = ""
        limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", HELD_BYTES * 10)
        self._most = min(HELD_BYTES, HELD_SHARE * limit)

    def add(self, record: Record, peer: str, calls: JaxCalls) -> None:
        """Keep a program of a line until the next trace."""
        if self._failed < GIVE_UP:
            x64 = bool(jax.config.jax_enable_x64)
            self._programs.append(_Program(record, peer, calls, x64))

    @property
    def full(self) -> bool:
        """Whether it is time for a trace."""
        held = sum(program.calls.nbytes for program in self._programs)
        return held > self._most or len(self._programs) >= HELD_PROGRAMS

    def trace(self) -> None:
        """Put the kernels' time into the records; what was dispatched stays beside it."""
        ready = [p for p in self._programs if _is_short(p)]
        self._programs.clear()
        if not ready:
            return
        counts = [profile.calls_for(p.record["times"][p.peer]["us"] * 1e-6) for p in ready]
        try:
            runners = [profile.Settled(p.calls, p.x64) for p in ready]
            times = profile.kernel_times(runners, counts)
            self._failed = 0
        except Exception as error:
            self._failed += 1
            self._why = f"{type(error).__name__}: {str(error).strip()[:300]}"
            times = [None] * len(ready)
        for program, found in zip(ready, times, strict=True):
            if found is None:
                self._unseen += 1
                continue
            entry = program.record["times"][program.peer]
            entry["dispatch_us"] = entry["us"]
            entry |= found.record()
            entry["share"] = program.record["limit_us"] / entry["us"]
        del ready
        gc.collect()

    def notes(self) -> list[str]:
        """What the traces did not give."""
        if not self._unseen:
            return []
        why = f" ({self._why})" if self._why else ""
        return [f"No trace of {self._unseen} programs{why}: their times contain the dispatch."]


def _is_short(program: _Program) -> bool:
    us = program.record["times"].get(program.peer, {}).get("us")
    return us is not None and us < LONGEST * 1e6
