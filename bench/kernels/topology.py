# SPDX-License-Identifier: Apache-2.0
"""One index array, what is known of it, and the facts that limits are computed from."""

from __future__ import annotations

import dataclasses
from functools import cached_property

import numpy as np

SECTOR = 32  # bytes: the smallest piece of memory that a GPU, and in effect a CPU, fetches


@dataclasses.dataclass(frozen=True)
class Topology:
    """ids int32 [m]: the row of each edge, all within [0, num_rows)."""

    name: str
    ids: np.ndarray
    num_rows: int

    @property
    def num_edges(self) -> int:
        """Return m."""
        return len(self.ids)

    @cached_property
    def degrees(self) -> np.ndarray:
        """Edges of each row."""
        return np.bincount(self.ids, minlength=self.num_rows)

    @cached_property
    def is_sorted(self) -> bool:
        """Whether ids never decrease: nothing has to be permuted."""
        return bool((np.diff(self.ids) >= 0).all())

    @cached_property
    def longest_row(self) -> int:
        """Edges of the longest row, which is what contention depends on."""
        return int(self.degrees.max(initial=0))

    @cached_property
    def rows_with_edges(self) -> int:
        """Rows that have an edge."""
        return int(np.count_nonzero(self.degrees))

    def bytes_by_edge(self, row_bytes: int) -> int:
        """Bytes fetched when every edge reads its node's row anew, in whole sectors."""
        if row_bytes % SECTOR == 0:
            return self.num_edges * row_bytes
        return int(self.degrees @ sector_bytes(self.num_rows, row_bytes))

    def bytes_of_rows(self, row_bytes: int) -> int:
        """Bytes fetched when every node row that has an edge is read once."""
        if row_bytes % SECTOR == 0:
            return self.rows_with_edges * row_bytes
        spread = int(sector_bytes(self.num_rows, row_bytes)[self.degrees > 0].sum())
        return min(spread, self.num_rows * row_bytes)


def sector_bytes(count: int, row_bytes: int) -> np.ndarray:
    """Bytes of the sectors that each of `count` contiguous rows touches, int64 [count]."""
    start = np.arange(count, dtype=np.int64) * row_bytes
    return ((start + row_bytes - 1) // SECTOR - start // SECTOR + 1) * SECTOR


def edge_sector_bytes(num_edges: int, row_bytes: int) -> int:
    """Bytes fetched when contiguous edge rows are read in random order, one by one."""
    if row_bytes % SECTOR == 0:
        return num_edges * row_bytes
    period = SECTOR  # after so many rows, offsets modulo a sector repeat
    pattern = sector_bytes(period, row_bytes)
    whole, rest = divmod(num_edges, period)
    return int(whole * pattern.sum() + pattern[:rest].sum())
