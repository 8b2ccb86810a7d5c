# SPDX-License-Identifier: Apache-2.0
"""Measure one line with every peer; whatever fails is recorded and the run goes on."""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from bench.kernels import check, patterns
from bench.kernels.limits import CACHE_RESIDENT, Ceilings, Limit, limit_of
from bench.kernels.line import DTYPES, Inputs, Line
from bench.kernels.peer import Peer, Prepared, Skip
from bench.kernels.peers import SUBJECT
from bench.kernels.pending import Pending
from bench.kernels.timing import Timing, graph_replay
from bench.kernels.topology import Topology

Record = dict[str, Any]
SMALL = 5 * CACHE_RESIDENT  # up to here operands rotate, for the cache could hold part of them
REPLAYED = ("small", "custom")  # groups whose small lines are also replayed as CUDA graphs
QUICK = ("real", "scale")  # groups of many lines, whose peers get half of the time
KEPT_TOPOLOGIES = 6
CPU_ROUNDS = 3
DISPATCHED = 3  # on a GPU dispatched calls get this part of the time: their figure is the second


class Bench:
    """State of one run: ceilings, peers, topologies, and programs that wait for a trace."""

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
        self._pending = Pending()

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

    def inputs(self, line: Line, copies: int) -> Any:
        """Operands and plan of a line."""
        return Inputs(line, self.topology(line), self.seed, copies)

    def reference(self, inputs: Any) -> Any:
        """The float64 answer: error(result) of any implementation, and `allowed`."""
        line, t = inputs.line, inputs.topology
        return check.Reference(line.moves, inputs.operands[0], inputs.ids, t.num_rows)

    def describe(self, line: Line) -> Record:
        """What the record says of a line's indices."""
        t = self.topology(line)
        return {
            "num_rows": t.num_rows, "num_edges": t.num_edges, "sorted": t.is_sorted,
            "longest_row": t.longest_row,
        }  # fmt: skip

    def run(self, line: Line) -> Record:
        """The record of one line; it has "error" where the line as a whole failed."""
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
        if self._pending.full:
            self._pending.trace()
        gc.collect()
        return record

    def _measure(self, line: Line, record: Record) -> None:
        limit = self.limit(line)
        record |= self.describe(line) | {"limit": limit.record(), "limit_us": limit.judge}
        rotate = self.on_gpu and CACHE_RESIDENT < limit.working_set < SMALL
        inputs = self.inputs(line, 3 if rotate else 1)
        record["cache_resident"] = self.on_gpu and limit.working_set < CACHE_RESIDENT
        seconds = self.seconds / (2 if line.group in QUICK else 1)
        reference = self.reference(inputs)
        ready: dict[str, Prepared] = {}
        for peer in self.peers:
            with _recorded(record, peer.name):
                name = f"{line.op} {peer.name}".replace(" ", "_").replace("-", "_")
                prepared = peer.prepare(inputs, name)
                self._check(peer.name, prepared, reference, record)
                if not self.on_gpu:
                    ready[peer.name] = prepared
                    continue
                # One after another: each gives its memory back, but for what awaits a trace.
                traced = prepared.calls is not None
                self._time({peer.name: prepared}, record, 1, seconds / (DISPATCHED * traced or 1))
                if prepared.calls is not None:
                    self._pending.add(record, peer.name, prepared.calls)
                if limit.working_set < SMALL:
                    self._replay(peer.name, prepared, inputs, record)
        self._time(ready, record, CPU_ROUNDS, seconds / CPU_ROUNDS)

    def _check(self, name: str, prepared: Prepared, reference: Any, record: Record) -> None:
        error, allowed = reference.error(prepared.result), reference.allowed
        record["times"][name] = {
            "error_f64": error, "accurate": error <= allowed, **prepared.facts,
        }  # fmt: skip
        if name == SUBJECT and not error <= allowed:
            raise ValueError(f"error {error:.3g} against float64, allowed {allowed:.3g}")
        prepared.result = None  # its buffer is given away by the first timed call

    def _time(
        self, ready: dict[str, Prepared], record: Record, rounds: int, seconds: float
    ) -> None:
        """Time the peers in turn, so that a machine that is busy for a while is so for all."""
        found: dict[str, list[Timing]] = {name: [] for name in ready}
        for _ in range(rounds):
            for name, prepared in ready.items():
                with _recorded(record, name):
                    found[name].append(prepared.time(seconds))
        for name, timings in found.items():
            if len(timings) == rounds:
                middle = sorted(timings, key=lambda t: t.seconds)[rounds // 2]
                entry = record["times"][name]
                entry |= middle.record()
                entry["share"] = record["limit_us"] / entry["us"]
                if rounds > 1:
                    entry["rounds_us"] = [t.seconds * 1e6 for t in timings]

    def _replay(self, name: str, prepared: Prepared, inputs: Any, record: Record) -> None:
        if not self.graphs or inputs.line.group not in REPLAYED:
            return
        # In a chain, XLA's row sums would share one array of zeros and copy it every time.
        if name != SUBJECT and not (name == "xla" and inputs.line.moves == "gather"):
            return
        if prepared.fn is None or prepared.calls is None:
            return
        entry, operand = record["times"][name], inputs.operands[0]
        try:
            entry["graph"] = graph_replay(prepared.fn, operand, prepared.calls.plan, self.seconds)
        except Exception as error:
            entry["graph"] = {"error": _text(error)}

    def finish(self) -> list[str]:
        """Trace what is left; what the traces of this run did not give."""
        self._pending.trace()
        return self._pending.notes()


@contextlib.contextmanager
def _recorded(record: Record, name: str) -> Iterator[None]:
    """A peer's reason or error becomes its entry."""
    try:
        yield
    except Skip as reason:
        record["times"][name] = {"skipped": str(reason)}
    except Exception as error:
        record["times"][name] = {"error": _text(error)}


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:500]}"
