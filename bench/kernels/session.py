# SPDX-License-Identifier: Apache-2.0
"""One run of a benchmark of kernels: its record, its lines within a budget, and its notes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.machine import describe_machine

Record = dict[str, Any]
SAVE_EVERY = 10  # lines
STEADY = 0.15  # change of bandwidth that is worth a note
LIBRARIES = ("torch", "torch_geometric", "cupy-cuda13x", "cupy-cuda12x")


def open_record(benchmark: str, arguments: Sequence[str]) -> Record:
    """The record before anything was measured."""
    import jax

    import jax_index

    machine = describe_machine()
    machine["versions"] |= _versions(*LIBRARIES)
    return {
        "benchmark": benchmark,
        "device": {"backend": jax.default_backend(), "device": jax.devices()[0].device_kind},
        "machine": machine,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "arguments": list(arguments),
        "kernels": jax_index.backends(),
        "lines": [],
        "notes": [],
    }


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine_notes(result: Record) -> list[str]:
    """What makes the figures of this machine doubtful."""
    notes = []
    platform = {"gpu": "cuda"}.get(result["device"]["backend"], result["device"]["backend"])
    lowering = result["kernels"].get(platform, "")
    if not lowering.startswith("kernels"):
        notes.append(f"jax_index ran without its kernels: {lowering or 'unknown platform'}.")
    load = os.getloadavg()[0]
    if load > 0.5 * len(os.sched_getaffinity(0)):
        notes.append(f"The machine was busy: load {load:.1f} before the run. Times are unsure.")
    return notes


def run_lines(
    bench: Any,
    lines: Sequence[Any],
    result: Record,
    *,
    until: float,
    path: Path | None,
    follow: Callable[[str, int], None],
) -> None:
    """Measure the lines in order, up to the moment `until` of the monotonic clock."""
    for done, line in enumerate(lines):
        follow(line.title, done)
        if time.monotonic() > until:
            left = ", ".join(dict.fromkeys(line.group for line in lines[done:]))
            result["notes"].append(
                f"{len(lines) - done} lines were left out for lack of time ({left})."
            )
            break
        result["lines"].append(bench.run(line))
        if path and done % SAVE_EVERY == 0:
            write(path, result)  # a crash of the device leaves these
    follow("traces of the last lines", len(lines))
    result["notes"] += bench.finish()


def steady(before: Any, after: Any, record: Record, result: Record) -> list[str]:
    """A note where the machine's bandwidth changed while the lines ran."""
    result["ceilings_after"] = record
    change = max(abs(getattr(after, k) / getattr(before, k) - 1) for k in ("read", "copy"))
    if change < STEADY:
        return []
    return [f"Bandwidth changed by {change:.0%} during the run: shares of the limit are unsure."]


def write(path: Path, result: Record) -> None:
    """Write the record as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
