# SPDX-License-Identifier: Apache-2.0
"""Where a step's time goes on a GPU: kernels that move rows by index, and all others.

A kernel counts as index work if it is one of jax_index, or if XLA made it of instructions among
which is a gather or a scatter: whatever was fused with those counts too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from bench.kernels.profile import stream_events, traced

STEPS = 5
SHOWN = 40  # kernels that the record lists by name, the longest ones
OURS = re.compile(r"jax_index")
BY_NAME = re.compile(r"(?<!all[-_])(gather|scatter)")
OPCODE = re.compile(r"(?<![\w-])(gather|scatter)\(")
# What a scatter is expanded to, and calls of jax_index, keep the name in their metadata.
EXPANDED = re.compile(
    r"(?<![\w-])(sort|while|dynamic-slice|dynamic-update-slice|custom-call)\("
    r'.*op_name="[^"]*(gather|scatter)[^"/]*"'
)
COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = ")
CALLED = re.compile(r"\b(?:calls|body)=%?([\w.-]+)")  # not to_apply: reductions share theirs


def profile_step(
    call: Callable[[], None], wait: Callable[[], Any], hlo: str, steps: int = STEPS
) -> dict[str, Any]:
    """Milliseconds of kernels a step, of index kernels, and their number; `hlo` is the program."""
    call()
    wait()

    def run() -> None:
        for _ in range(steps):
            call()
        wait()

    found = split(traced(run), index_instructions(hlo), steps)
    if not found["kernels"]:
        raise RuntimeError("the trace has no kernels")
    return found


def index_instructions(hlo: str) -> set[str]:
    """Names, as kernels bear them, of instructions that contain a gather or a scatter."""
    inside: dict[str, list[tuple[str, str]]] = defaultdict(list)
    computation = ""
    for line in hlo.splitlines():
        if opened := COMPUTATION.match(line):
            computation = opened[1]
        elif named := INSTRUCTION.match(line):
            inside[computation].append((named[1], line))
    indexing: set[str] = set()  # computations with such an instruction
    names: set[str] = set()
    # A computation stands before those that call it, whatever the nesting.
    for computation, lines in inside.items():
        for name, line in lines:
            called = CALLED.search(line)
            by_call = called is not None and called[1] in indexing
            if by_call or OPCODE.search(line) or EXPANDED.search(line):
                names.add(as_kernel(name))
                indexing.add(computation)
    return names


def as_kernel(name: str) -> str:
    """The name of an instruction in a kernel's name."""
    return re.sub(r"[^\w]", "_", name)


def split(planes: Iterable[Any], names: set[str], steps: int) -> dict[str, Any]:
    """The figures of `profile_step` out of a trace of `steps` steps."""
    spent: dict[tuple[str, bool], list[float]] = defaultdict(lambda: [0.0, 0])
    for event, stats in stream_events(planes):
        origin = as_kernel(str(stats.get("hlo_op", "")))
        index = as_kernel(event.name) in names or origin in names
        index = index or any(OURS.search(s) or BY_NAME.search(s) for s in (event.name, origin))
        entry = spent[event.name, index]
        entry[0] += event.duration_ns * 1e-6 / steps
        entry[1] += 1 / steps
    longest = sorted(spent.items(), key=lambda item: -item[1][0])[:SHOWN]
    return {
        "kernel_ms": sum(ms for ms, _ in spent.values()),
        "index_ms": sum(ms for (_, index), (ms, _) in spent.items() if index),
        "kernels": sum(count for _, count in spent.values()),
        "longest": [
            {"name": name[:120], "ms": ms, "count": count, "index": index}
            for (name, index), (ms, count) in longest
        ],
    }
