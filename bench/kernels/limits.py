# SPDX-License-Identifier: Apache-2.0
"""How fast a line could be: bytes over the bandwidths that the same run measured.

once: every row is read from memory once. no_reuse: every edge reads its row anew, in whole sectors.
cache: the rows that edges read, out of the cache. Indices count where they are read: a gather reads
ids; a row sum reads indptr and, unless the edges are sorted, perm.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from bench.kernels.topology import Topology, edge_sector_bytes

CACHE_RESIDENT = 40e6  # working sets below are judged by the cache, on a GPU
WIDE = 256  # bytes: rows from here on are judged by the limit "once"


@dataclasses.dataclass(frozen=True)
class Ceilings:
    """Bandwidths in bytes per second. cache: of random rows out of tables of so many bytes."""

    read: float
    write: float
    copy: float
    cache: dict[int, float]

    def cache_for(self, table_bytes: int) -> float:
        """Bandwidth out of the smallest measured table that is no smaller than this one."""
        fitting = [size for size in self.cache if size >= table_bytes]
        return self.cache[min(fitting) if fitting else max(self.cache)]


@dataclasses.dataclass(frozen=True)
class Limit:
    """Microseconds, the bytes of the limit "once", and which figure judges the line."""

    once: float
    no_reuse: float
    cache: float
    bytes_once: int
    working_set: int
    judged_by: str

    @property
    def judge(self) -> float:
        """The figure that the share of the limit is taken of."""
        return float(getattr(self, self.judged_by))

    def record(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


def limit_of(
    moves: str, topology: Topology, width: int, itemsize: int, c: Ceilings, on_gpu: bool
) -> Limit:
    """Limits of a line. moves: "gather" (node rows to edges) or "scatter" (edge rows to nodes)."""
    n, m, row = topology.num_rows, topology.num_edges, width * itemsize
    if moves == "gather":
        indices, written = 4 * m, m * row
        once, again = topology.bytes_of_rows(row), topology.bytes_by_edge(row)
        table = n * row
    else:
        indices, written = 4 * (n + 1), n * row
        once = again = table = m * row
        if not topology.is_sorted:
            indices += 4 * m
            again = edge_sector_bytes(m, row)
    judged_by = "once" if moves == "scatter" or row >= WIDE else "no_reuse"
    return limit_from(
        once, again, indices, written, c,
        working_set=(n + m) * row + indices, table=table, judged_by=judged_by, on_gpu=on_gpu,
    )  # fmt: skip


def limit_from(
    once: int, again: int, indices: int, written: int, c: Ceilings, *,
    working_set: int, table: int, judged_by: str, on_gpu: bool,
) -> Limit:  # fmt: skip
    """Limits of so many bytes: read (once; anew for every edge), of indices, and written.

    table: bytes of what edges read; working sets below CACHE_RESIDENT are judged by its cache.
    """

    def us(read: int) -> float:
        return 1e6 * ((read + indices) / c.read + written / c.write)

    return Limit(
        once=us(once),
        no_reuse=us(again),
        cache=1e6 * again / c.cache_for(table),
        bytes_once=once + indices + written,
        working_set=working_set,
        judged_by="cache" if on_gpu and working_set < CACHE_RESIDENT else judged_by,
    )
