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
GIVE_UP = 2  # traces that failed in a run
ABOVE = 1.1  # of the dispatched time, which cannot be if kernels follow each other


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
        self._above = 0
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
        # Should separators be lost, a trace of one program needs none.
        groups = [ready] if self._failed == 0 else [[program] for program in ready]
        for group in groups:
            times = self._times(group)
            if times is None and len(group) > 1:
                times = [(self._times([program]) or [None])[0] for program in group]
            for program, found in zip(group, times or [None] * len(group), strict=True):
                self._enter(program, found)
        ready.clear()
        gc.collect()

    def _times(self, programs: list[_Program]) -> list[profile.KernelTime | None] | None:
        """Kernel times of one trace; None where it fails."""
        if self._failed >= GIVE_UP:
            return None
        counts = [profile.calls_for(p.record["times"][p.peer]["us"] * 1e-6) for p in programs]
        try:
            runners = [profile.Settled(p.calls, p.x64) for p in programs]
            return profile.kernel_times(runners, counts)
        except Exception as error:
            self._failed += 1
            self._why = f"{type(error).__name__}: {str(error).strip()[:300]}"
            return None

    def _enter(self, program: _Program, found: profile.KernelTime | None) -> None:
        if found is None:
            self._unseen += 1
            return
        entry = program.record["times"][program.peer]
        entry["dispatch_us"] = entry["us"]
        entry |= found.record()
        entry["share"] = program.record["limit_us"] / entry["us"]
        self._above += entry["us"] > ABOVE * entry["dispatch_us"]

    def notes(self) -> list[str]:
        """What the traces did not give, and what is odd about them."""
        told = []
        if self._unseen:
            why = f" ({self._why})" if self._why else ""
            told.append(
                f"No trace of {self._unseen} programs{why}: their times contain the dispatch."
            )
        if self._above:
            told.append(
                f"The kernels of {self._above} programs take longer in the trace than the calls "
                "did: either the machine was busy, or kernels ran side by side."
            )
        return told


def _is_short(program: _Program) -> bool:
    us = program.record["times"].get(program.peer, {}).get("us")
    return us is not None and us < LONGEST * 1e6
