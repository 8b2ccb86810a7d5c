# SPDX-License-Identifier: Apache-2.0
"""`python -m bench fused`: products, attention and segment ops beside limits and peers."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.kernels.options import among, numbers, sizes

# XLA takes most of a GPU at once unless told otherwise, and the peers need some.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

BUDGET = {"gpu": 130.0, "cpu": 120.0}  # seconds until the last line begins
SECONDS = {"gpu": 0.1, "cpu": 0.1}  # a peer and line


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print, write. 1 if a line of jax_index failed, 0 else: targets do not count."""
    import jax

    from bench.fused import grid, targets
    from bench.fused.measure import FusedBench
    from bench.fused.peers import PEERS, SUBJECT, TITLES
    from bench.kernels import session, table
    from bench.kernels.ceilings import measure_ceilings

    options = _parser(PEERS).parse_args(arguments)
    started = time.monotonic()
    backend = jax.default_backend()
    on_gpu = backend == "gpu"
    lines = _lines(options, grid, on_gpu)
    if options.list:
        for line in lines:
            print(f"{line.group:10s} {line.title}")
        return 0
    console = Console()
    if not console.is_terminal:
        console.width = 180
    result = session.open_record("fused", arguments)
    result["notes"] += _notes(on_gpu) + session.machine_notes(result)
    with Progress(
        TextColumn("{task.description:58s}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console,
    ) as progress:  # fmt: skip
        bar = progress.add_task("ceilings", total=len(lines))
        ceilings, result["ceilings"] = measure_ceilings(on_gpu, use_torch=False)
        bench = FusedBench(
            ceilings, [PEERS[name] for name in options.peers], {}, on_gpu=on_gpu,
            seed=options.seed, seconds=options.seconds or SECONDS.get(backend, 0.1), graphs=False,
        )  # fmt: skip
        session.run_lines(
            bench, lines, result, path=options.json,
            until=started + (options.budget or BUDGET.get(backend, 120.0)),
            follow=lambda title, done: progress.update(bar, description=title, completed=done),
        )  # fmt: skip
        progress.update(bar, description="ceilings once more")
        result["notes"] += session.steady(
            ceilings, *measure_ceilings(on_gpu, use_torch=False), result
        )
        progress.update(bar, description="done", completed=len(lines))
    targets.judge(result["lines"], backend)
    result["seconds"] = round(time.monotonic() - started, 1)
    table.print_report(console, result, TITLES, grid.GROUPS)
    if options.json:
        session.write(options.json, result)
        console.print(f"record: {options.json}")
    if options.charts:
        from bench.fused import charts  # matplotlib is slow to import and not always wanted

        for path in charts.draw_all(result, options.charts):
            console.print(f"chart: {path}")
    own = [r.get("error") or r["times"].get(SUBJECT, {}).get("error") for r in result["lines"]]
    return 1 if any(own) else 0


def _parser(peers: dict[str, Any]) -> argparse.ArgumentParser:
    from bench.fused.grid import GROUPS
    from bench.fused.inputs import PATTERNS
    from bench.fused.ops import OPS
    from bench.kernels.line import DTYPES

    parser = argparse.ArgumentParser(prog="python -m bench fused", description=__doc__)
    what = parser.add_argument_group("lines (any of the filters but --groups makes its own grid)")
    what.add_argument("--quick", action="store_true", help="smaller shapes")
    what.add_argument("--groups", type=among(list(GROUPS)), help=", ".join(GROUPS))
    what.add_argument("--ops", type=among(list(OPS)), help=", ".join(OPS))
    what.add_argument("--patterns", type=among(list(PATTERNS)), help=", ".join(PATTERNS))
    what.add_argument("--sizes", type=sizes, help="nodes:edges, as 13000:43000,512k:4M")
    what.add_argument("--widths", type=numbers, help="multiples of 4, as 16,64")
    what.add_argument("--dtypes", type=among(list(DTYPES)[:3]), help=", ".join(list(DTYPES)[:3]))
    how = parser.add_argument_group("run")
    how.add_argument("--peers", type=among(list(peers)), default=list(peers), help=", ".join(peers))
    how.add_argument("--seconds", type=float, help="a peer and line (0.1)")
    how.add_argument("--budget", type=float, help="seconds until the last line begins (130)")
    how.add_argument("--seed", type=int, default=0)
    how.add_argument("--list", action="store_true", help="print the lines and stop")
    out = parser.add_argument_group("output")
    out.add_argument("--json", type=Path, help="write the record here")
    out.add_argument("--charts", type=Path, help="draw SVG charts into this folder")
    return parser


def _lines(options: Any, grid: Any, on_gpu: bool) -> list[Any]:
    chosen = (options.ops, options.patterns, options.sizes, options.widths, options.dtypes)
    if any(value is not None for value in chosen):
        return grid.custom_lines(*chosen, on_gpu)
    lines = grid.default_lines(on_gpu, options.quick)
    return [line for line in lines if not options.groups or line.group in options.groups]


def _notes(on_gpu: bool) -> list[str]:
    import jaxlib

    notes = [
        "Limits: every row once a pass / every edge anew / rows out of the cache; bold is the one "
        "that judges. Peers: their time and, in brackets, times ours."
    ]
    if on_gpu:
        notes.append(
            "cuSPARSE and torch's CSR have their weights in row order, sorted once beforehand; "
            "jax_index and XLA take them in the caller's order. jax_index and XLA: the kernels' "
            "own time from a profiler's trace; other peers: events, replayed as a CUDA graph where "
            f"a call is short. XLA's figures are those of jaxlib {jaxlib.__version__}."
        )
    return notes
