# SPDX-License-Identifier: Apache-2.0
"""`python -m bench ops`: every op beside its limits, its targets and its peers."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.kernels.options import among, numbers, sizes, words

# XLA takes most of a GPU at once unless told otherwise, and torch needs some.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print, write. 1 if a line of jax_index failed, 0 else: targets do not count."""
    import jax

    from bench.kernels import cases, deterministic, grid, real_inputs, session, table, targets
    from bench.kernels.ceilings import measure_ceilings
    from bench.kernels.measure import Bench
    from bench.kernels.peers import DETERMINISTIC, PEERS, SUBJECT

    options = _parser(grid, PEERS, DETERMINISTIC).parse_args(arguments)
    started = time.monotonic()
    on_gpu = jax.default_backend() == "gpu"
    budget = options.budget or (float("inf") if options.full else 170.0 if on_gpu else 85.0)
    real = {} if options.no_real or options.scale else real_inputs.real_inputs()
    if options.peers is None:
        options.peers = [SUBJECT, "xla"] if options.scale else [*PEERS, DETERMINISTIC]
    lines = _lines(options, grid, real, on_gpu)
    if options.list:
        for line in lines:
            print(f"{line.group:9s} {line.title}")
        return 0
    console = Console()
    if not console.is_terminal:
        console.width = 180
    result = session.open_record("ops", arguments) | {"cases": []}
    unwanted = options.no_real or options.scale
    result["notes"] += _notes(on_gpu, real, unwanted) + session.machine_notes(result)
    with Progress(
        TextColumn("{task.description:58s}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console,
    ) as progress:  # fmt: skip
        bar = progress.add_task("ceilings", total=len(lines))
        ceilings, result["ceilings"] = measure_ceilings(on_gpu, "torch-add" in options.peers)
        bench = Bench(
            ceilings, [PEERS[name] for name in options.peers if name in PEERS], real,
            on_gpu=on_gpu, seed=options.seed, seconds=options.seconds or (0.12 if on_gpu else 0.1),
             graphs=not options.no_graphs,
        )  # fmt: skip
        session.run_lines(
            bench, lines, result, until=started + budget, path=options.json,
            follow=lambda title, done: progress.update(bar, description=title, completed=done),
        )  # fmt: skip
        if DETERMINISTIC in options.peers and on_gpu:
            progress.update(bar, description="XLA deterministic, in its own process")
            result["notes"] += deterministic.add_times(result["lines"], options.seed)
        progress.update(bar, description="ceilings once more")
        result["notes"] += session.steady(
            ceilings, *measure_ceilings(on_gpu, use_torch=False), result
        )
        if not options.no_cases and not options.scale:
            for name in cases.CASES:
                progress.update(bar, description=f"case {name}")
                result["cases"].append(cases.run_case(name, on_gpu))
        progress.update(bar, description="done", completed=len(lines))
    backend = "gpu" if on_gpu else "cpu"
    result["verdicts"] = targets.judge(result["lines"], backend, ceilings.copy)
    result["seconds"] = round(time.monotonic() - started, 1)
    table.print_report(console, result)
    if options.json:
        session.write(options.json, result)
        console.print(f"record: {options.json}")
    if options.charts:
        from bench.kernels import charts  # matplotlib is slow to import and not always wanted

        for path in charts.draw_all(result, options.charts):
            console.print(f"chart: {path}")
    own = [r.get("error") or r["times"].get(SUBJECT, {}).get("error") for r in result["lines"]]
    return 1 if any(own) else 0


def _parser(grid: Any, peers: dict[str, Any], deterministic: str) -> argparse.ArgumentParser:
    names = [*peers, deterministic]
    parser = argparse.ArgumentParser(prog="python -m bench ops", description=__doc__)
    what = parser.add_argument_group("lines (any of the filters but --groups makes its own grid)")
    what.add_argument("--full", action="store_true", help="the whole grid, without a budget")
    what.add_argument("--scale", action="store_true", help="cost against size, XLA as the peer")
    what.add_argument("--groups", type=words, help="groups of the default grid, as wide,small")
    what.add_argument("--ops", type=words, help=", ".join(grid.OPS))
    what.add_argument("--patterns", type=words, help=f"{', '.join(grid.PATTERNS)}; real inputs")
    what.add_argument("--widths", type=numbers, help="as 1,16,64")
    what.add_argument("--dtypes", type=words, help=", ".join(grid.DTYPES))
    what.add_argument("--sizes", type=sizes, help="rows:edges, as 13000:43000,512k:4M")
    what.add_argument("--no-real", action="store_true", help="leave real inputs out")
    how = parser.add_argument_group("run")
    how.add_argument("--peers", type=among(names), help=", ".join(names))
    how.add_argument("--seconds", type=float, help="a peer and line (GPU 0.12, CPU 0.1)")
    how.add_argument("--budget", type=float, help="seconds for all lines")
    how.add_argument("--seed", type=int, default=0)
    how.add_argument("--no-graphs", action="store_true", help="no CUDA graph replays")
    how.add_argument("--no-cases", action="store_true", help="no performance cases")
    how.add_argument("--list", action="store_true", help="print the lines and stop")
    out = parser.add_argument_group("output")
    out.add_argument("--json", type=Path, help="write the record here")
    out.add_argument("--charts", type=Path, help="draw SVG charts into this folder")
    return parser


def _lines(options: Any, grid: Any, real: dict[str, Any], on_gpu: bool) -> list[Any]:
    from bench.kernels import real_inputs

    chosen = (options.ops, options.patterns, options.widths, options.dtypes, options.sizes)
    if any(value is not None for value in chosen):
        unknown = [p for p in options.patterns or () if p not in grid.PATTERNS and p not in real]
        if unknown:
            raise SystemExit(f"no pattern {unknown[0]}; there are {[*grid.PATTERNS, *real]}")
        size = (512 * 2**10, 4 * 2**20) if on_gpu else (13_000, 344_000)
        return grid.custom_lines(
            options.ops or list(grid.FORWARD),
            options.patterns or list(grid.KIND),
            options.sizes or [size],
            options.widths or [64],
            options.dtypes or ["float32"],
        )
    if options.scale:
        return grid.scale_lines(on_gpu, options.full)
    names = list(real) if options.full else real_inputs.headline(list(real), few=not on_gpu)
    lines = grid.default_lines(on_gpu, options.full, names)
    return [line for line in lines if not options.groups or line.group in options.groups]


def _notes(on_gpu: bool, real: dict[str, Any], unwanted: bool) -> list[str]:
    import jaxlib

    from bench.kernels.real_inputs import data_folder

    notes = [
        "Limits: every row once from memory / every edge anew / the rows out of the cache; bold is "
        "the one that judges. Peers: their time and, in brackets, times ours."
    ]
    if on_gpu:
        notes.append(
            "jax_index and XLA: the kernels' own time from a profiler's trace, without the gaps "
            "between calls; torch: by events, replayed as a CUDA graph where a call is short. "
            "Working sets below 40 MB stay in the L2; up to 200 MB, operands rotate. XLA's figures "
            f"are those of jaxlib {jaxlib.__version__}."
        )
    else:
        notes.append(
            "CPU results are written into reused buffers (donation), so that results above 32 MiB "
            "do not page-fault; SciPy allocates its own. XLA's deterministic flag concerns GPUs."
        )
    if not real and not unwanted:
        notes.append(f"No real inputs in {data_folder()} (JAX_INDEX_DATA names the folder).")
    return notes
