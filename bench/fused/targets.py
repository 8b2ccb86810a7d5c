# SPDX-License-Identifier: Apache-2.0
"""What each line is to reach, as data, and whether it did."""

from __future__ import annotations

import dataclasses
from typing import Any

from bench.fused.grid import LARGE
from bench.fused.ops import GRADIENTS, HEADS
from bench.fused.peers import SUBJECT
from bench.kernels.line import DTYPES

Record = dict[str, Any]
ANY = None
LIBRARY = ("cusparse-alg2", "cusparse-alg3")  # with cached descriptors
SPMM, ATTENTION = "spmm weighted", "graph_attention"


@dataclasses.dataclass(frozen=True)
class Target:
    """Lines that match every field given must have `figure` at least / at most `bound`.

    figure: "us"; "xla", "cuSPARSE", "SciPy" (the quickest one's time over ours); "over spmm" (time
    over that of the weighted spmm of the same shape); "backward over spmm" (the same of the line's
    time less that of the forward pass alone); "over uniform" (time over that of the uniform line);
    "temp" (temporary memory over n d + m heads numbers); "temp of edges" (over m d numbers).
    """

    figure: str
    bound: float
    ops: tuple[str, ...]
    at_least: bool = False
    backend: str = "gpu"
    patterns: tuple[str, ...] | None = ANY
    size: tuple[int, int] | None = LARGE
    dtype: str = "float32"

    @property
    def what(self) -> str:
        """The lines that it speaks of, in words."""
        return ", ".join(
            [" and ".join(self.ops), *([" and ".join(self.patterns)] if self.patterns else [])]
        )

    def applies(self, record: Record, backend: str) -> bool:
        """Whether it speaks of this line."""
        size = (record.get("num_rows"), record.get("num_edges"))
        return (
            backend == self.backend
            and record["op"] in self.ops
            and record["dtype"] == self.dtype
            and (self.patterns is ANY or record["pattern"] in self.patterns)
            and (self.size is ANY or size == self.size)
        )


BOTH = (ATTENTION, ATTENTION + GRADIENTS)
SEGMENTS = ("segment_max" + GRADIENTS, "segment_softmax" + GRADIENTS)
TARGETS = (
    Target("us", 300.0, (SPMM,), patterns=("uniform",)),
    Target("us", 265.0, ("spmm",), patterns=("uniform",)),
    Target("us", 135.0, (SPMM,), patterns=("local",)),
    Target("over uniform", 1.0, (SPMM,), patterns=("hub",)),
    Target("cuSPARSE", 1.4, (SPMM,), at_least=True),
    Target("over spmm", 2.3, (ATTENTION,)),
    Target("backward over spmm", 4.8, (ATTENTION + GRADIENTS,)),
    Target("xla", 3.0, BOTH, at_least=True),
    Target("temp of edges", 1.0, BOTH, size=ANY),
    Target("xla", 2.0, SEGMENTS, at_least=True),
    Target("xla", 1.0, ("spmm", SPMM, *BOTH, *SEGMENTS), at_least=True, backend="cpu", size=ANY),
    Target("SciPy", 1.0, ("spmm", SPMM), at_least=True, backend="cpu", size=ANY),
)


def judge(records: list[Record], backend: str) -> None:
    """Add "figures" and "verdicts" to every record."""
    found = {_key(r): r for r in records if _us(r)}
    for record in records:
        record["verdicts"] = []
        record["figures"] = figures(record, found) if _us(record) else {}
        for target in TARGETS:
            value = record["figures"].get(target.figure)
            if value is not None and target.applies(record, backend):
                met = value >= target.bound if target.at_least else value <= target.bound
                record["verdicts"].append(
                    {"what": target.what, "figure": target.figure, "value": value,
                     "bound": target.bound, "at_least": target.at_least, "met": bool(met)}
                )  # fmt: skip


def figures(record: Record, found: dict[tuple[Any, ...], Record]) -> dict[str, float]:
    """Every figure of a line that can be had."""
    us = _us(record)

    def of(op: str | None = None, pattern: str | None = None) -> float | None:
        other = found.get(_key(record, op, pattern))
        return _us(other) if other else None

    forward = of(record["op"].removesuffix(GRADIENTS)) if GRADIENTS in record["op"] else None
    numbers = {
        "us": us,
        "xla": _over(_peer(record, ("xla",)), us),
        "cuSPARSE": _over(_peer(record, LIBRARY), us),
        "SciPy": _over(_peer(record, ("scipy",)), us),
        "over spmm": _over(us, of(SPMM)),
        "over uniform": _over(us, of(pattern="uniform")),
        "backward over spmm": _over(us - forward if forward else None, of(SPMM)),
    }
    temp, itemsize = record["times"][SUBJECT].get("temp_bytes"), DTYPES[record["dtype"]]
    if temp is not None:
        n, m, width = (record[key] for key in ("num_rows", "num_edges", "width"))
        numbers["temp"] = temp / (itemsize * (n * width + m * HEADS))
        numbers["temp of edges"] = temp / (itemsize * m * width)
    return {key: value for key, value in numbers.items() if value is not None}


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def _peer(record: Record, names: tuple[str, ...]) -> float | None:
    entries = [record["times"].get(name, {}) for name in names]
    known = [e["us"] for e in entries if "us" in e and e.get("accurate", True)]
    return min(known) if known else None


def _us(record: Record) -> Any:
    return record["times"].get(SUBJECT, {}).get("us")


def _key(record: Record, op: str | None = None, pattern: str | None = None) -> tuple[Any, ...]:
    fixed = tuple(record.get(k) for k in ("num_rows", "num_edges", "width", "dtype"))
    return (op or record["op"], pattern or record["pattern"], *fixed)
