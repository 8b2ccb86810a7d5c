# SPDX-License-Identifier: Apache-2.0
"""What the fused column's training step is to reach on a GPU, as data, and whether it did."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from bench.columns import FUSED

Record = dict[str, Any]
BATCH = 8  # what the targets of a full step speak of


@dataclasses.dataclass(frozen=True)
class StepTarget:
    """A peer's figure over the fused column's must be at least `bound`."""

    what: str
    peer: str
    batch: int
    bound: float
    figure: Callable[[Record], Any]
    dtype: str = "float32"


def _of(key: str) -> Callable[[Record], Any]:
    return lambda run: run.get(key)


def _profiled(key: str) -> Callable[[Record], Any]:
    return lambda run: run.get("profile", {}).get(key)


TARGETS = (
    StepTarget("training step", "xla", BATCH, 1.08, _of("train_ms")),
    StepTarget("kernel time", "xla", BATCH, 1.10, _profiled("kernel_ms")),
    StepTarget("index work", "xla", BATCH, 2.2, _profiled("index_ms")),
    StepTarget("training step", "xla-deterministic", BATCH, 30.0, _of("train_ms")),
    StepTarget("temp memory", "xla", BATCH, 1 / 0.75, _of("temp_bytes")),
    StepTarget("training step", "xla", 1, 1.0, _of("train_ms")),
    StepTarget("kernels", "xla", 1, 1.0, _profiled("kernels")),
    StepTarget("training step", "xla", BATCH, 2.5, _of("train_ms"), "bfloat16"),
)


def judge_steps(result: Record) -> list[Record]:
    """One verdict for each target that this run has figures for."""
    if result["device"]["backend"] != "gpu":
        return []
    verdicts = []
    for target in TARGETS:
        if target.dtype != result.get("dtype", "float32"):
            continue
        figures = []
        for name in (target.peer, FUSED):
            run = result["columns"].get(name, {}).get("batches", {}).get(str(target.batch), {})
            figures.append(target.figure(run))
        theirs, ours = figures
        if theirs and ours:
            value = theirs / ours
            verdicts.append(
                {
                    "what": f"{target.what}, {target.peer} over fused, B = {target.batch}",
                    "figure": "ratio",
                    "value": value,
                    "bound": round(target.bound, 3),
                    "at_least": True,
                    "met": value >= target.bound,
                }
            )
    return verdicts
