# SPDX-License-Identifier: Apache-2.0
"""How fast a line could be: bytes over the bandwidths that the same run measured.

once: every row of every operand is read once a pass. no reuse: what an edge needs of a node is read
anew for every edge, and what an edge has is read in whole sectors where edges are not sorted by
receiver. A forward and a backward pass are two passes: the one must end before the other begins.
"""

from __future__ import annotations

import dataclasses

from bench.fused.inputs import Ends
from bench.fused.ops import GRADIENTS, HEADS
from bench.kernels.limits import Ceilings, Limit, limit_from
from bench.kernels.topology import edge_sector_bytes

ID = 4  # bytes of an index


@dataclasses.dataclass
class Bytes:
    """Bytes of a pass: read once, read with no reuse, indices, written."""

    once: int = 0
    again: int = 0
    indices: int = 0
    written: int = 0

    def __add__(self, other: Bytes) -> Bytes:
        fields = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Bytes(*(a + b for a, b in fields))


class _Pass:
    """What one pass over the edges, grouped by one end, reads and writes."""

    def __init__(self, ends: Ends, width: int, itemsize: int):
        self.ends, self.row, self.itemsize = ends, width * itemsize, itemsize
        self.n, self.m = ends.receivers.num_rows, ends.receivers.num_edges

    def owned(self, count: int, by_sender: bool = False) -> Bytes:
        """`count` rows of each node that the edges are grouped by."""
        end = self.ends.senders if by_sender else self.ends.receivers
        size = count * end.bytes_of_rows(self.row)
        return Bytes(size, size)

    def fetched(self, count: int, by_sender: bool = False) -> Bytes:
        """`count` rows of each edge's other end."""
        end = self.ends.receivers if by_sender else self.ends.senders
        return Bytes(count * end.bytes_of_rows(self.row), count * end.bytes_by_edge(self.row))

    def of_edges(self, width: int) -> Bytes:
        """A row of `width` numbers of each edge, in the caller's order."""
        size = width * self.itemsize
        by_receiver = self.ends.receivers.is_sorted
        return Bytes(
            self.m * size, self.m * size if by_receiver else edge_sector_bytes(self.m, size)
        )

    def csr(self, other_end: bool, order: bool) -> Bytes:
        """Row pointers, the other end of each edge, and where in the caller's order it stands."""
        order = order and not self.ends.receivers.is_sorted
        return Bytes(indices=ID * (self.n + 1 + self.m * (other_end + order)))

    def nodes_written(self, count: int) -> Bytes:
        """`count` rows of each node."""
        return Bytes(written=count * self.n * self.row)

    def edges_written(self, width: int) -> Bytes:
        """A row of `width` numbers of each edge."""
        return Bytes(written=self.m * width * self.itemsize)


def bytes_of(op: str, ends: Ends, width: int, itemsize: int) -> Bytes:
    """Bytes of all passes of an op."""
    p = _Pass(ends, width, itemsize)
    forward = op.removesuffix(GRADIENTS)
    weighted = forward == "spmm weighted"
    weights = p.of_edges(1) if weighted else Bytes()
    passes = {
        "spmm": lambda: p.fetched(1) + p.csr(True, False) + p.nodes_written(1),
        "spmm weighted": lambda: p.fetched(1) + weights + p.csr(True, True) + p.nodes_written(1),
        "sddmm": lambda: (
            p.fetched(1) + p.fetched(1, True) + Bytes(indices=2 * ID * p.m) + p.edges_written(1)
        ),
        "edge_softmax": lambda: (p.of_edges(HEADS) + p.csr(False, True) + p.edges_written(HEADS)),
        "graph_attention": lambda: (
            p.owned(1) + p.fetched(2) + p.csr(True, False) + p.nodes_written(1)
        ),
        "segment_max": lambda: p.of_edges(width) + p.csr(False, True) + p.nodes_written(1),
        "segment_softmax": lambda: p.of_edges(width) + p.csr(False, True) + p.edges_written(width),
    }[forward]()
    if not op.endswith(GRADIENTS):
        return passes
    return passes + {
        # The cotangent into x, by sender; dots of both ends into the weights.
        "spmm weighted": lambda: (
            p.fetched(1, True) + weights + p.csr(True, True) + p.nodes_written(1)
            + p.fetched(1) + p.fetched(1, True) + Bytes(indices=2 * ID * p.m) + p.edges_written(1)
        ),
        # By receiver: q, result and cotangent stay, k and v are fetched; by sender the reverse.
        "graph_attention": lambda: (
            p.owned(3) + p.fetched(2) + p.csr(True, False) + p.nodes_written(1)
            + p.owned(2, True) + p.fetched(2, True) + p.csr(True, False) + p.nodes_written(2)
        ),
        "segment_max": lambda: (
            p.of_edges(width) + p.owned(2) + Bytes(indices=ID * p.m) + p.edges_written(width)
        ),
        "segment_softmax": lambda: (
            p.of_edges(width) + p.of_edges(width) + p.csr(False, True) + p.edges_written(width)
        ),
    }[forward]()  # fmt: skip


def limit_of(op: str, ends: Ends, width: int, itemsize: int, c: Ceilings, on_gpu: bool) -> Limit:
    """Limits of a line under measured ceilings; those from memory are judged by "once"."""
    total = bytes_of(op, ends, width, itemsize)
    on_edges = op.startswith(("segment", "edge"))
    rows = ends.receivers.num_edges if on_edges else ends.receivers.num_rows
    return limit_from(
        total.once, total.again, total.indices, total.written, c,
        working_set=total.once + total.indices + total.written, table=rows * width * itemsize,
        judged_by="once", on_gpu=on_gpu,
    )  # fmt: skip
