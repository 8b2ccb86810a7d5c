# SPDX-License-Identifier: Apache-2.0
"""What each line is to reach, as data, and whether it did."""

from __future__ import annotations

import dataclasses
from typing import Any

from bench.kernels.peers import SUBJECT
from bench.kernels.table import count

Record = dict[str, Any]
K, M = 2**10, 2**20
ANY = None


@dataclasses.dataclass(frozen=True)
class Target:
    """Lines that match every field given must have `figure` at least / at most `bound`.

    figure: "share" of the judging limit; "share once"; "us"; "replay us" (a CUDA graph's); "xla"
    and "host" (the peer's time over ours); "copy" (bytes over copy bandwidth); "of float32" (time
    over that of the float32 line); "of lanes" (share once over that of rows of 64 numbers, which
    lanes of 16 bytes divide).
    """

    figure: str
    bound: float
    at_least: bool
    backend: str = "gpu"
    ops: tuple[str, ...] | None = ANY
    patterns: tuple[str, ...] | None = ANY
    dtypes: tuple[str, ...] | None = ("float32",)
    width: int | None = ANY
    row_bytes: tuple[int, int] = (0, 2**31)
    size: tuple[int, int] | None = ANY
    is_sorted: bool | None = ANY
    from_memory: bool = False  # only where the working set is larger than the cache

    @property
    def what(self) -> str:
        """The lines that it speaks of, in words."""
        # A gradient goes by the name of the op that moves rows the same way.
        words = [
            self.ops[0] if self.ops in (SUM, GATHER) else " and ".join(self.ops or ("every op",))
        ]
        low, high = self.row_bytes
        if low and high == low:
            words.append(f"rows of {low} B")
        elif low > 1:
            words.append(
                f"rows of {low} B or more" if high >= 2**31 else f"rows of {low} to {high} B"
            )
        elif high < 2**31:
            words.append(f"rows up to {high} B")
        if self.width is not ANY:
            words.append("one number a row" if self.width == 1 else f"{self.width} numbers a row")
        if self.size is not ANY:
            rows = f"{count(self.size[0])} row{'s' if self.size[0] > 1 else ''}"
            words.append(f"{count(self.size[1])} edges into {rows}")
        words += [" and ".join(kinds) for kinds in (self.patterns, self.dtypes) if kinds]
        if self.is_sorted is not ANY:
            words.append("sorted" if self.is_sorted else "not sorted")
        return ", ".join(word for word in words if word != "float32")

    def applies(self, record: Record, backend: str) -> bool:
        """Whether it speaks of this line."""
        size = (record.get("num_rows"), record.get("num_edges"))
        return (
            backend == self.backend
            and (self.ops is ANY or record["op"] in self.ops)
            and (self.patterns is ANY or record["pattern"] in self.patterns)
            and (self.dtypes is ANY or record["dtype"] in self.dtypes)
            and (self.width is ANY or record["width"] == self.width)
            and self.row_bytes[0] <= record["row_bytes"] <= self.row_bytes[1]
            and (self.size is ANY or size == self.size)
            and (self.is_sorted is ANY or record.get("sorted") == self.is_sorted)
            and not (self.from_memory and record.get("cache_resident"))
        )


SUM, GATHER = ("scatter_add", "gather gradient"), ("gather", "scatter_add gradient")
SKEWED = ("sorted", "hub-sorted", "all-but-one-empty")
FEW = ("one-row", "few-64", "few-1024", "few-64-sorted", "few-1024-sorted")
SMALL_ROADS = ((13_000, 43_000), {"uniform": 5.5, "local": 5.5, "hub": 9.0})
SMALL_GRAPHS = ((13_000, 344_000), {"uniform": 26.0, "local": 28.0, "hub": 35.0})

TARGETS: tuple[Target, ...] = (
    Target("share once", 0.85, True, ops=GATHER, row_bytes=(256, 2**31), from_memory=True),
    Target("share", 0.85, True, ops=GATHER, row_bytes=(1, 255), from_memory=True),
    Target("xla", 1.0, True, ops=GATHER),
    Target("share once", 0.92, True, ops=SUM, patterns=("uniform", "local"),
           row_bytes=(256, 2**31), from_memory=True),
    Target("share once", 0.88, True, ops=SUM, patterns=("hub",), row_bytes=(256, 2**31),
           from_memory=True),
    Target("share once", 0.70, True, ops=SUM, patterns=("uniform",), row_bytes=(64, 64),
           from_memory=True),
    Target("share once", 0.85, True, ops=SUM, patterns=("local",), row_bytes=(64, 64),
           from_memory=True),
    Target("share once", 0.70, True, ops=SUM, is_sorted=True, row_bytes=(8, 63), from_memory=True),
    Target("us", 14.0, False, ops=SUM, width=1, size=(M, 8 * M), is_sorted=True),
    Target("us", 70.0, False, ops=SUM, width=1, size=(M, 8 * M), is_sorted=False),
    Target("us", 13.0, False, ops=SUM, width=1, size=(1, 8 * M)),
    Target("us", 13.0, False, ops=SUM, width=1, size=(64, 8 * M), is_sorted=True),
    Target("us", 70.0, False, ops=SUM, width=1, size=(64, 8 * M), is_sorted=False),
    Target("us", 13.0, False, ops=SUM, width=1, size=(1024, 8 * M), is_sorted=True),
    Target("us", 70.0, False, ops=SUM, width=1, size=(1024, 8 * M), is_sorted=False),
    Target("of float32", 0.6, False, dtypes=("bfloat16", "float16"), row_bytes=(128, 2**31),
           from_memory=True),
    Target("of lanes", 0.9, True, ops=("gather", "scatter_add"), patterns=("uniform",), width=33,
           from_memory=True),
    *(
        Target("replay us", us, False, ops=("gather", "scatter_add"), patterns=(pattern,),
               width=64, size=size)
        for size, bounds in (SMALL_ROADS, SMALL_GRAPHS)
        for pattern, us in bounds.items()
    ),
    Target("copy", 0.7, True, "cpu", patterns=("sorted", "local"), row_bytes=(64, 2**31)),
    Target("xla", 1.0, True, "cpu", dtypes=ANY),
    Target("host", 1.0, True, "cpu", dtypes=ANY),
    Target("of float32", 1.3, False, "cpu", dtypes=("bfloat16",)),
)  # fmt: skip

LARGE = 2e8  # bytes: far more than any cache
FLATNESS = 1.3  # largest over smallest share among wide rows from memory
PLAN_NS = 10.0  # per edge and core, 32-bit ids
EAGER_US = 30.0


def judge(records: list[Record], backend: str, copy: float) -> list[Record]:
    """Add "verdicts" to every record; return the verdicts that concern the run as a whole."""
    float32 = {_shape(r): r for r in records if r["dtype"] == "float32" and _us(r)}
    wide = {
        (r["op"], r["pattern"]): r
        for r in float32.values()
        if r["width"] == 64 and not r.get("cache_resident") and r["limit"]["working_set"] > LARGE
    }
    for record in records:
        record["verdicts"] = []
        if not _us(record):
            continue
        for target in TARGETS:
            if target.applies(record, backend):
                figure = _figure(target.figure, record, float32, wide, copy)
                if figure is not None:
                    met = figure >= target.bound if target.at_least else figure <= target.bound
                    record["verdicts"].append(
                        {"what": target.what, "figure": target.figure, "value": figure,
                         "bound": target.bound, "at_least": target.at_least, "met": bool(met)}
                    )  # fmt: skip
    return [verdict for op in ("gather", "scatter_add") for verdict in _flatness(records, op)]


def unmeasured(records: list[Record], backend: str) -> list[Target]:
    """The targets of this backend that no record has a verdict on."""
    judged = {(v["what"], v["figure"], v["bound"]) for r in records for v in r.get("verdicts", [])}
    return [
        t for t in TARGETS if t.backend == backend and (t.what, t.figure, t.bound) not in judged
    ]


def _us(record: Record) -> float | None:
    return record["times"].get(SUBJECT, {}).get("us")


def _once(record: Record) -> float:
    return float(record["limit"]["once"] / _us(record))


def _shape(record: Record) -> tuple[Any, ...]:
    return tuple(record.get(k) for k in ("op", "pattern", "num_rows", "num_edges", "width"))


def _figure(
    name: str, record: Record, float32: dict[Any, Record], wide: dict[Any, Record], copy: float
) -> float | None:
    us = _us(record)
    assert us is not None
    if name == "us":
        return us
    if name == "share":
        return float(record["limit_us"] / us)
    if name == "share once":
        return float(record["limit"]["once"] / us)
    if name == "copy":
        return float(record["limit"]["bytes_once"] / us * 1e6 / copy)
    if name == "replay us":
        return record["times"][SUBJECT].get("graph", {}).get("us")
    if name == "of float32":
        same = float32.get(_shape(record))
        return us / _us(same) if same else None
    if name == "of lanes":
        other = wide.get((record["op"], record["pattern"]))
        return record["limit"]["once"] / us / _once(other) if other else None
    peers = {"xla": ("xla", "xla-sorted"), "host": ("numpy", "scipy")}[name]
    times = [record["times"].get(p, {}).get("us") for p in peers]
    known = [t for t in times if t]
    return min(known) / us if known else None


def _flatness(records: list[Record], op: str) -> list[Record]:
    shares = [
        r["limit"]["once"] / _us(r)
        for r in records
        if r["op"] == op and r["row_bytes"] >= 256 and _us(r) and not r.get("cache_resident")
        and r["limit"]["working_set"] > LARGE
    ]  # fmt: skip
    if len(shares) < 2:
        return []
    spread = max(shares) / min(shares)
    return [
        {"what": f"{op}, {len(shares)} lines with rows of 256 B or more, every pattern and dtype",
         "figure": "largest over smallest share", "value": spread, "bound": FLATNESS,
         "at_least": False, "met": spread <= FLATNESS}
    ]  # fmt: skip
