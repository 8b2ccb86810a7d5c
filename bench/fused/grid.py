# SPDX-License-Identifier: Apache-2.0
"""Which lines a run has, by what it runs on; the most telling ones first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.fused.ops import GRADIENTS, OPS
from bench.kernels.line import Line

K, M = 2**10, 2**20
KIND = ("uniform", "local", "hub")
LARGE, MIDDLE, SMALL, TINY = (512 * K, 4 * M), (13_000, 344_000), (13_000, 43_000), (2000, 16_000)
WIDTH = 64
ATTENTION = ("graph_attention", "graph_attention" + GRADIENTS)
SEGMENTS = ("segment_max" + GRADIENTS, "segment_softmax" + GRADIENTS)
REST = ("sddmm", "edge_softmax", "segment_max", "segment_softmax", "spmm weighted" + GRADIENTS)


def _lines(
    group: str, ops: Sequence[str], size: tuple[int, int], patterns: Sequence[str] = KIND,
    width: int = WIDTH, dtype: str = "float32",
) -> Iterator[Line]:  # fmt: skip
    # Pattern by pattern: lines of one graph stand together, and its plans are made once.
    for pattern in patterns:
        for op in ops:
            yield Line(op, pattern, *size, width, dtype, group)


def default_lines(on_gpu: bool, quick: bool = False) -> list[Line]:
    """The lines of a run without filters, none twice."""
    products = ("spmm weighted", "spmm")
    if quick or not on_gpu:
        size = MIDDLE if on_gpu or not quick else TINY
        return [
            *_lines("products", products, size),
            *_lines("attention", ATTENTION, size),
            *_lines("segments", SEGMENTS, size),
            *_lines("rest", REST, size, ("uniform",)),
        ]
    return [
        *_lines("products", products, LARGE),
        *_lines("attention", ATTENTION, LARGE),
        *_lines("segments", SEGMENTS, LARGE),
        *_lines("rest", REST, LARGE),
        *_lines("bfloat16", ("spmm weighted", *ATTENTION), LARGE, ("uniform",), dtype="bfloat16"),
        *_lines("small", (*products, *ATTENTION), SMALL),
        *_lines("small", (*products, *ATTENTION), MIDDLE),
    ]


def custom_lines(
    ops: Sequence[str] | None, patterns: Sequence[str] | None,
    sizes: Sequence[tuple[int, int]] | None, widths: Sequence[int] | None,
    dtypes: Sequence[str] | None, on_gpu: bool,
) -> list[Line]:  # fmt: skip
    """Every combination; what is not given is that of the headline."""
    lines = [
        line
        for size in sizes or (LARGE if on_gpu else MIDDLE,)
        for width in widths or (WIDTH,)
        for dtype in dtypes or ("float32",)
        for line in _lines("custom", ops or tuple(OPS), size, patterns or KIND, width, dtype)
    ]
    return list(dict.fromkeys(lines))


GROUPS = {
    "products": "products",
    "attention": "attention",
    "segments": "segment ops with gradients",
    "rest": "the other ops",
    "small": "small graphs",
    "bfloat16": "bfloat16",
    "custom": "chosen lines",
}
