# SPDX-License-Identifier: Apache-2.0
"""Which lines a run has, by what it runs on; the most telling ones first."""

from __future__ import annotations

from collections.abc import Iterator

from bench.kernels.line import DTYPES, OPS, Line
from bench.kernels.patterns import PATTERNS

K, M = 2**10, 2**20
WIDTHS = (1, 2, 3, 4, 8, 16, 33, 64, 66, 256, 1000)
FORWARD = ("gather", "scatter_add")
KIND = ("uniform", "local", "hub")
LARGEST = 2_200_000_000  # elements: beyond 2^31
# Rows of one number have as many ids as elements, and a plan of more takes the host seconds.
MOST_IDS = 130_000_000
DECADES = tuple(10**k for k in range(3, 10))
BETWEEN = (3 * 10**6, 3 * 10**7, 3 * 10**8)
CPU_ELEMENTS = 10**7


def _lines(group: str, ops, patterns, size, widths, dtypes=("float32",)) -> Iterator[Line]:
    for op in ops:
        for pattern in patterns:
            for width in widths:
                for dtype in dtypes:
                    yield Line(op, pattern, *size, width, dtype, group)


def _scale(elements: int, width: int = 64) -> tuple[int, int]:
    edges = max(elements // width, 1)
    return max(edges // 8, 1), edges


def _sized(width: int, itemsize: int, budget: int, most: int) -> tuple[int, int]:
    """Rows and edges such that edge rows take `budget` bytes; at most `most` edges."""
    edges = min(most, budget // (width * itemsize))
    return max(edges // 8, 1), edges


def scale_lines(on_gpu: bool, full: bool = False) -> list[Line]:
    """Cost against size: rows of 64 and of one number, 8 edges a row, smallest sizes first.

    What lies between the powers of ten comes last, for the time may not reach.
    """
    most = LARGEST if on_gpu else CPU_ELEMENTS * (10 if full else 1)
    lines: list[Line] = []
    for wide, narrow in (((*DECADES, LARGEST), (*DECADES, MOST_IDS)), (BETWEEN, BETWEEN)):
        for width, sizes in ((64, wide), (1, narrow)):
            for elements in sizes:
                rows, edges = _scale(elements, width)
                if elements <= most and edges <= MOST_IDS:
                    lines += _lines("scale", FORWARD, ("uniform",), (rows, edges), (width,))
    return lines


def default_lines(on_gpu: bool, full: bool, real: list[str]) -> list[Line]:
    """The lines of a run without filters, none twice."""
    lines = list(_gpu(full, real) if on_gpu else _cpu(full, real))
    return list(dict.fromkeys(lines))


def _gpu(full: bool, real: list[str]) -> Iterator[Line]:
    wide, narrow = (512 * K, 4 * M), (1 * M, 8 * M)
    rest = [p for p in PATTERNS if p not in KIND]
    yield from _lines("wide", FORWARD, KIND, wide, (64,))
    for size in ((13_000, 43_000), (13_000, 344_000)):
        yield from _lines("small", FORWARD, KIND, size, (64,))
    yield from _lines("16", FORWARD, KIND, narrow, (16,))
    yield from _lines(
        "scalar", ("scatter_add",),
        ("sorted", "hub-sorted", "one-row", "few-64-sorted", "few-1024-sorted",
         "uniform", "hub", "few-64", "few-1024"), narrow, (1,),
    )  # fmt: skip
    yield from _lines("scalar", ("gather",), ("uniform", "sorted"), narrow, (1,))
    yield from _lines("16", ("scatter_add",), ("sorted",), narrow, (16, 4, 2))
    yield from _lines("widths", FORWARD, ("uniform",), _sized(33, 4, 2**30, 4 * M), (33,))
    yield from _real(real)
    yield from _lines("dtypes", FORWARD, KIND, wide, (64,), ("bfloat16",))
    yield from _lines("dtypes", FORWARD, ("uniform",), wide, (64,), ("float16", "float64"))
    yield from _lines("dtypes", FORWARD, ("uniform",), wide, (33,), ("bfloat16",))
    yield from _lines("wide", FORWARD, ("sorted", "all-but-one-empty"), wide, (64,))
    yield from _lines("wide", FORWARD, ("one-row", "half", "one-edge-per-row"), wide, (64,))
    yield from _lines("gradient", list(OPS)[2:], ("uniform", "hub"), wide, (64,))
    for width in (w for w in WIDTHS if w != 64):  # a headline
        size = _sized(width, 4, 2**30, 4 * M)
        yield from _lines("widths", FORWARD, ("uniform",), size, (width,))
    if full:
        yield from scale_lines(True, full)
        for width in WIDTHS:
            for dtype, itemsize in DTYPES.items():
                size = _sized(width, itemsize, 2**30, 4 * M)
                yield from _lines("full", OPS, (*KIND, *rest), size, (width,), (dtype,))


def _cpu(full: bool, real: list[str]) -> Iterator[Line]:
    wide, narrow = (13_000, 344_000), (50_000, 1_000_000)
    yield from _lines("wide", FORWARD, KIND, wide, (64,))
    yield from _lines("16", FORWARD, (*KIND, "sorted"), narrow, (16,))
    yield from _lines("wide", FORWARD, ("sorted", "all-but-one-empty"), wide, (64,))
    yield from _lines("scalar", FORWARD, ("uniform", "sorted"), narrow, (1,))
    yield from _lines("scalar", ("scatter_add",), ("one-row", "few-64"), narrow, (1,))
    yield from _lines("dtypes", ("scatter_add",), ("uniform",), narrow, (16,), list(DTYPES)[1:])
    yield from _lines("small", FORWARD, KIND, (13_000, 43_000), (64,))
    yield from _real(real)
    yield from _lines("dtypes", ("gather",), ("uniform",), narrow, (16,), list(DTYPES)[1:])
    for width in WIDTHS if full else (2, 3, 8, 33, 256, 1000):
        size = _sized(width, 4, 2**25, 2**19)
        yield from _lines("widths", FORWARD, ("uniform",), size, (width,))
    yield from _lines("gradient", list(OPS)[2:], ("uniform", "hub"), wide, (64,))
    yield from _lines("wide", FORWARD, ("one-row", "half", "one-edge-per-row"), wide, (64,))
    if full:
        yield from scale_lines(False, full)
        for width in WIDTHS:
            for dtype, itemsize in DTYPES.items():
                size = _sized(width, itemsize, 2**25, 2**19)
                yield from _lines("full", OPS, PATTERNS, size, (width,), (dtype,))


def _real(names: list[str]) -> Iterator[Line]:
    """Graphs and roads with rows of 64, traces of single numbers, as the programs moved them."""
    for name in names:
        yield from _lines(
            "real", FORWARD, (name,), (0, 0), (1 if name.startswith("spatter") else 64,)
        )


def custom_lines(
    ops: list[str], patterns: list[str], sizes: list[tuple[int, int]], widths: list[int],
    dtypes: list[str],
) -> list[Line]:  # fmt: skip
    """Every combination; a real input keeps its own size."""
    lines = []
    for size in sizes:
        for pattern in patterns:
            shape = size if pattern in PATTERNS else (0, 0)
            lines += _lines("custom", ops, (pattern,), shape, widths, dtypes)
    return list(dict.fromkeys(lines))
