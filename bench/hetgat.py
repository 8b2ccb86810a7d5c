# SPDX-License-Identifier: Apache-2.0
"""`python -m bench hetgat`: train HetGAT-TA with every column, side by side."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.columns import COLUMNS, DETERMINISTIC_FLAG, FUSED, REFERENCE, SUBJECT
from bench.configurations import CONFIGURATIONS, Source
from bench.judge import add_bits, add_learning, add_repeats
from bench.launch import PINNED_FLAGS, ColumnError, probe, run_column
from bench.machine import describe_machine
from bench.report import print_report
from bench.scenarios import NUM_SCENARIOS, Problem
from bench.step_targets import judge_steps
from bench.train import Job

COMPARE_STEPS = 3
REPEAT_STEPS = {"gpu": 100, "cpu": 5}  # of the fused column, taken three times for their bits
LINK_STEPS = 365_000  # links x steps of a default run of a small network on a CPU


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print, write. 1 if a column failed or bits differ that must not."""
    options = _parse(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 130
    device = probe()
    on_gpu = device["backend"] == "gpu"
    source = Source(
        config=options.config or ("road-42955" if on_gpu else "city"),
        net=options.net,
        trips=options.trips,
        flow=options.flow,
        node=options.node,
        od_per_zone=options.od_per_zone,
        permute=options.permute_nodes,
        seed=options.seed,
        num_scenarios=options.scenarios,
    )
    with (
        tempfile.TemporaryDirectory(prefix="jax_index-hetgat-") as folder,
        Progress(
            TextColumn("{task.description:44s}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress,
    ):
        result = _run(options, source, device, Path(folder), progress)
    print_report(console, result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"record: {options.json}")
    if options.chart:
        from bench.plot import draw  # matplotlib is slow to import and not always wanted

        draw(result, options.chart)
        console.print(f"chart: {options.chart}")
    sound = all("error" not in record for record in result["columns"].values())
    equal = all(bits["loss_equal"] and bits["gradients_equal"] for bits in result["bits"])
    repeats = result["repeats"]
    repeated = not repeats or (repeats["same_process"] and repeats["second_process"])
    return 0 if sound and equal and repeated else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the options and refuse those that contradict each other."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.permute_nodes and options.trips:
        parser.error("--permute-nodes goes with generated demand, not with --trips")
    if (options.trips or options.flow or options.node) and not options.net:
        parser.error("--trips, --flow and --node go with --net")
    for path in (options.net, options.trips, options.flow, options.node):
        if path and not path.is_file():
            parser.error(f"no file {path}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench hetgat", description=__doc__)
    what = parser.add_argument_group("workload")
    what.add_argument(
        "--config",
        choices=CONFIGURATIONS,
        help="generated network; default: city on a CPU, road-42955 on a GPU",
    )
    what.add_argument("--net", type=Path, help="TNTP net file in place of --config")
    what.add_argument("--trips", type=Path, help="TNTP trips file; else demand is generated")
    what.add_argument("--flow", type=Path, help="TNTP flow file, one more held-out scenario")
    what.add_argument("--node", type=Path, help="TNTP node file; else coordinates are 0")
    what.add_argument("--od-per-zone", type=int, help="at most so many od links from a zone")
    what.add_argument("--scenarios", type=int, default=NUM_SCENARIOS, help="a quarter is held out")
    what.add_argument("--permute-nodes", action="store_true", help="random node numbers")
    what.add_argument("--seed", type=int, default=0)
    how = parser.add_argument_group("run")
    how.add_argument("--batch", type=_numbers, help="batch sizes, as 1,8; the largest is trained")
    how.add_argument("--steps", type=int, help="training steps of the column that trains in full")
    how.add_argument("--seconds", type=float, help="training time of each other column and batch")
    how.add_argument("--repeat-steps", type=int, help="steps repeated for the fused column's bits")
    how.add_argument(
        "--softmax",
        choices=("clip", "segment"),
        default="clip",
        help="exp of clipped scores over their sum, or a true softmax over the edges of a node",
    )
    how.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of activations"
    )
    how.add_argument("--columns", type=_columns, default=list(COLUMNS), help=", ".join(COLUMNS))
    out = parser.add_argument_group("output")
    out.add_argument("--json", type=Path, help="write the record here")
    out.add_argument("--chart", type=Path, help="draw the record here (.svg or .png)")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


def _columns(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no column {unknown[0]}; there are {', '.join(COLUMNS)}")
    return [name for name in COLUMNS if name in names]


def _run(
    options: argparse.Namespace,
    source: Source,
    device: dict[str, Any],
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    task = progress.add_task("scenarios", total=options.scenarios)
    problem = source.problem(progress=lambda done, _: progress.update(task, completed=done))
    problem_path = folder / "problem.npz"
    problem.save(problem_path)
    batches = options.batch or source.batches()
    learn_batch = max(batches)
    on_gpu = device["backend"] == "gpu"
    learners = [name for name in (FUSED, SUBJECT) if name in options.columns]
    learner = [*learners, options.columns[-1]][0]
    machine = describe_machine()
    if device["device"] == "cpu":
        device["device"] = machine["cpu"]
    result: dict[str, Any] = {
        "benchmark": "hetgat",
        "workload": problem.describe(),
        "source": {k: str(v) for k, v in vars(source).items() if v is not None},
        "device": device,
        "machine": machine,
        "batches": list(batches),
        "learn_batch": learn_batch,
        "softmax": options.softmax,
        "dtype": options.dtype,
        "columns": {},
        "bits": [],
        "repeats": None,
        "learning": None,
        "notes": _notes(options, on_gpu),
    }

    def run(name: str, job: Job, flags: Sequence[str]) -> dict[str, Any]:
        title = COLUMNS[name].title
        bar = progress.add_task(title, total=None)

        def follow(phase: str, done: int, total: int) -> None:
            progress.update(
                bar, description=f"{title}: {phase}", completed=done, total=total or None
            )

        try:
            record = run_column(job, problem_path, folder, flags, follow)
        except ColumnError as error:
            result["notes"].append(f"{title}: did not run. {str(error).splitlines()[-1]}")
            record = {"error": str(error)}
        progress.update(bar, description=title, completed=1, total=1)
        return record

    for name in options.columns:
        column = COLUMNS[name]
        flags = column.flags + (PINNED_FLAGS if column.pinned and on_gpu else ())
        job = _job(options, problem, name, batches, learner, on_gpu)
        result["columns"][name] = run(name, job, flags)

    def bits(name: str, steps: int, again: bool) -> dict[str, Any]:
        # A timed process chose its own matmuls on a GPU: bits need a pinned one.
        job = Job(
            name, options.seed, (learn_batch,), {learn_batch: steps}, {learn_batch: None},
            COMPARE_STEPS, learn_batch, 0.0, options.softmax, options.dtype,
            measure=False, again=again,
        )  # fmt: skip
        return run(name, job, PINNED_FLAGS if on_gpu else ())

    add_bits(result, bits)
    add_repeats(result, bits, options.repeat_steps or REPEAT_STEPS["gpu" if on_gpu else "cpu"])
    add_learning(result, learner)
    result["verdicts"] = judge_steps(result)
    return result


def _job(
    options: argparse.Namespace,
    problem: Problem,
    name: str,
    batches: tuple[int, ...],
    learner: str,
    on_gpu: bool,
) -> Job:
    """The learner takes all steps of the largest batch; anything else is stopped by time."""
    steps = options.steps or _default_steps(problem, on_gpu)
    seconds = options.seconds or (10.0 if on_gpu else 2.0)
    full = max(batches)
    return Job(
        column=name,
        seed=options.seed,
        batches=batches,
        steps={b: max(steps, COMPARE_STEPS) for b in batches},
        seconds={
            b: (None if name == learner else seconds) if b == full else seconds / 2 for b in batches
        },
        compare=COMPARE_STEPS,
        learn_batch=full,
        predict_seconds=3.0 if on_gpu else 1.0,
        softmax=options.softmax,
        dtype=options.dtype,
    )


def _default_steps(problem: Problem, on_gpu: bool) -> int:
    """Enough for the loss to halve; on a CPU half a minute of `city`, a minute of small ones."""
    if on_gpu:
        return 1000
    return min(LINK_STEPS // len(problem.senders), 1500) if problem.num_nodes <= 500 else 52


def _notes(options: argparse.Namespace, on_gpu: bool) -> list[str]:
    notes = []
    if options.flow and not options.trips:
        notes.append("Published flows belong to a demand: without --trips they were not used.")
    if "xla-deterministic" in options.columns and not on_gpu:
        notes.append(
            f"XLA deterministic: {DETERMINISTIC_FLAG} concerns GPUs; here it is XLA native again."
        )
    if on_gpu and {REFERENCE, SUBJECT} <= set(options.columns):
        notes.append(
            f"Bits are compared between processes with {' '.join(PINNED_FLAGS)}; the host round "
            "trip is timed with it too, every other column with XLA's own choice of matmuls."
        )
    elif on_gpu and FUSED in options.columns:
        notes.append(f"Bits are compared between processes with {' '.join(PINNED_FLAGS)}.")
    return notes
