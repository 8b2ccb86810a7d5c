# SPDX-License-Identifier: Apache-2.0
"""The bench of kernels, for ops on graphs."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from bench.fused import inputs, limits, reference
from bench.kernels.limits import Limit
from bench.kernels.line import DTYPES, Line
from bench.kernels.measure import Bench

KEPT_GRAPHS = 4


class FusedBench(Bench):
    """Topologies are pairs of them, one for each end of the edges."""

    def topology(self, line: Line) -> Any:
        """The graph of a line; the last few are kept, with their plans."""
        key = (line.pattern, line.num_rows, line.num_edges)
        if key not in self._topologies:
            self._topologies[key] = inputs.generate(*key, self.seed)
            while len(self._topologies) > KEPT_GRAPHS:
                self._topologies.popitem(last=False)
        self._topologies.move_to_end(key)
        return self._topologies[key]

    def limit(self, line: Line) -> Limit:
        """Limits of a line under this run's ceilings."""
        ends, itemsize = self.topology(line), DTYPES[line.dtype]
        return limits.limit_of(line.op, ends, line.width, itemsize, self.ceilings, self.on_gpu)

    def inputs(self, line: Line, copies: int) -> inputs.Inputs:
        """Operands and graph of a line."""
        return inputs.Inputs(line, self.topology(line), self.seed, copies)

    def reference(self, given: inputs.Inputs) -> reference.Reference:
        """The float64 answer."""
        return reference.Reference(given)

    def describe(self, line: Line) -> dict[str, Any]:
        """What the record says of a line's graph."""
        ends = self.topology(line)
        return {
            "num_rows": ends.receivers.num_rows,
            "num_edges": ends.receivers.num_edges,
            "sorted": ends.receivers.is_sorted,
            "longest_row": ends.receivers.longest_row,
            "longest_row_of_senders": ends.senders.longest_row,
        }

    def run(self, line: Line) -> dict[str, Any]:
        """The record of one line; torch's cache is emptied after it, for JAX needs the room."""
        record = super().run(line)
        if "torch" in sys.modules:
            with contextlib.suppress(Exception):
                sys.modules["torch"].cuda.empty_cache()
        return record
