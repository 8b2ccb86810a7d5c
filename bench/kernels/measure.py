# SPDX-License-Identifier: Apache-2.0
"""Measure one line with every peer; whatever fails is recorded and the run goes on."""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax

from bench.kernels import check, patterns, profile
from bench.kernels.limits import CACHE_RESIDENT, Ceilings, Limit, limit_of
from bench.kernels.line import DTYPES, Inputs, Line
from bench.kernels.peer import Peer, Skip
from bench.kernels.peers import SUBJECT
from bench.kernels.timing import JaxCalls, graph_replay
from bench.kernels.topology import Topology

Record = dict[str, Any]
# Up to here operands rotate, for the cache could hold part of them, and times are the profiler's,
# for kernels may be shorter than their dispatch.
SMALL = 5 * CACHE_RESIDENT
REPLAYED = ("small", "custom")  # groups whose small lines are also replayed as CUDA graphs
KEPT_TOPOLOGIES = 6


class Bench:
    """State of one run: ceilings, peers, topologies, and small programs to be profiled."""

    def __init__(
        self,
        ceilings: Ceilings,
        peers: Sequence[Peer],
        real: dict[str, Callable[[], Topology]],
        *,
        on_gpu: bool,
        seed: int = 0,
        seconds: float = 0.2,
        graphs: bool = True,
    ):
        self.ceilings, self.peers, self.real = ceilings, peers, real
        self.on_gpu, self.seed, self.seconds, self.graphs = on_gpu, seed, seconds, graphs
        self._topologies: OrderedDict[tuple[str, int, int], Topology] = OrderedDict()
        self._small: dict[str, tuple[Record, str, JaxCalls]] = {}
        self._count = 0

    def topology(self, line: Line) -> Topology:
        """The topology of a line; the last few are kept."""
        key = (line.pattern, line.num_rows, line.num_edges)
        if key not in self._topologies:
            if line.pattern in self.real:
                made = self.real[line.pattern]()
            else:
                made = patterns.generate(line.pattern, line.num_rows, line.num_edges, self.seed)
            self._topologies[key] = made
            while len(self._topologies) > KEPT_TOPOLOGIES:
                self._topologies.popitem(last=False)
        self._topologies.move_to_end(key)
        return self._topologies[key]

    def limit(self, line: Line) -> Limit:
        """Limits of a line under this run's ceilings."""
        t = self.topology(line)
        return limit_of(line.moves, t, line.width, DTYPES[line.dtype], self.ceilings, self.on_gpu)

    def run(self, line: Line) -> Record:
        """The record of one line; it has "error" where the line as a whole failed."""
        self._count += 1
        record: Record = {
            "op": line.op, "pattern": line.pattern, "group": line.group, "dtype": line.dtype,
            "width": line.width, "row_bytes": line.row_bytes, "times": {},
        }  # fmt: skip
        # float64 arrays need x64 while they are made and while programs are traced.
        x64 = jax.enable_x64(True) if line.dtype == "float64" else contextlib.nullcontext()
        try:
            with x64:
                self._measure(line, record)
        except Exception as error:
            record["error"] = _text(error)
        gc.collect()
        return record

    def _measure(self, line: Line, record: Record) -> None:
        t, limit = self.topology(line), self.limit(line)
        record |= {
            "num_rows": t.num_rows, "num_edges": t.num_edges, "sorted": t.is_sorted,
            "longest_row": t.longest_row, "limit": limit.record(), "limit_us": limit.judge,
        }  # fmt: skip
        rotate = self.on_gpu and CACHE_RESIDENT < limit.working_set < SMALL
        inputs = Inputs(line, t, self.seed, copies=3 if rotate else 1)
        small = self.on_gpu and limit.working_set < SMALL
        record["cache_resident"] = self.on_gpu and limit.working_set < CACHE_RESIDENT
        reference = check.Reference(line.moves, inputs.operands[0], inputs.ids, t.num_rows)
        allowed = check.tolerance(line.moves, line.dtype)
        for peer in self.peers:
            try:
                record["times"][peer.name] = self._peer(
                    peer, inputs, reference, allowed, small, record
                )
            except Skip as reason:
                record["times"][peer.name] = {"skipped": str(reason)}
            except Exception as error:
                record["times"][peer.name] = {"error": _text(error)}

    def _peer(
        self, peer: Peer, inputs: Inputs, reference: Any, allowed: float, small: bool,
        record: Record,
    ) -> Record:  # fmt: skip
        line = inputs.line
        plain = f"{line.op} {peer.name}".replace(" ", "_").replace("-", "_")
        name = f"{plain}_{self._count}" if small else plain
        prepared = peer.prepare(inputs, name)
        error = reference.error(prepared.result)
        found: Record = {"error_f64": error, "accurate": error <= allowed}
        if peer.name == SUBJECT and not error <= allowed:
            raise ValueError(f"error {error:.3g} against float64, allowed {allowed:.3g}")
        prepared.result = None  # its buffer is given away by the first timed call
        found |= prepared.time(self.seconds).record()
        found["share"] = record["limit_us"] / found["us"]
        # Profiled later, outside of this line's settings: float64 needs its own.
        if small and prepared.calls is not None and line.dtype != "float64":
            self._small[name] = (record, peer.name, prepared.calls)
        replayed = self.graphs and record["cache_resident"] and line.group in REPLAYED
        if replayed and peer.name == SUBJECT:
            try:
                fn, plan = prepared.fn, inputs.plan
                found["graph"] = graph_replay(fn, inputs.operands[0], plan, self.seconds)
            except Exception as error:
                found["graph"] = {"error": _text(error)}
        return found

    def profile_small(self) -> str | None:
        """Replace the times of small programs by the profiler's; the reason where it cannot."""
        if not self._small:
            return None
        try:
            times = profile.kernel_microseconds({k: v[2] for k, v in self._small.items()})
        except Exception as error:
            return f"no profile of small shapes ({_text(error)}): their times contain the dispatch"
        for name, figures in times.items():
            record, peer, _ = self._small[name]
            entry = record["times"][peer]
            entry["dispatch_us"], entry["us"] = entry["us"], figures["us"]
            entry["kernels"], entry["method"] = figures["kernels"], "profiler"
            entry["share"] = record["limit_us"] / figures["us"]
        missing = len(self._small) - len(times)
        self._small.clear()
        if missing:
            return f"the profiler saw nothing of {missing} small programs: dispatch times stand"
        return None


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:500]}"
