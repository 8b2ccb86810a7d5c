# SPDX-License-Identifier: Apache-2.0
"""`python -m bench gat --data FOLDER`: train the GAT on Cora and Citeseer with every column."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.citations.attention import COLUMNS, SUBJECT
from bench.citations.dataset import DATASETS, CitationGraph, read_citation_graph
from bench.citations.report import print_report, summarise
from bench.citations.training import PATIENCE, Job, compare_runs
from bench.launch import PINNED_FLAGS, ColumnError, probe, run_child
from bench.machine import describe_machine

SEEDS = 20
EPOCHS = 2000  # patience ends nearly every run before
GPU_BATCH = 20  # a CPU trains one seed after another: its cores are busy with one
DEVICES = {"gpu": "cuda"}  # JAX's name of a back end: that of the platform it is lowered for

Record = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print, write. 1 if a column failed or jax_index did not repeat its bits."""
    parser = _parser()
    options = parser.parse_args(arguments)
    paths = {name: options.data / f"{name}.npz" for name in options.dataset}
    try:
        graphs = {name: read_citation_graph(path) for name, path in paths.items()}
    except (OSError, ValueError) as error:
        parser.error(str(error))
    console = Console()
    result = _describe(options, graphs)
    with (
        tempfile.TemporaryDirectory(prefix="jax_index-gat-") as folder,
        Progress(
            TextColumn("{task.description:44s}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress,
    ):
        for name, path in paths.items():
            columns = result["datasets"][name]["columns"]
            for column in options.columns:
                title = f"{DATASETS[name]}, {COLUMNS[column].title}"
                columns[column] = _run(options, result, title, column, path, Path(folder), progress)
    print_report(console, result)
    if options.json:
        options.json.write_text(json.dumps(result) + "\n")
        console.print(f"record: {options.json}")
    if options.chart:
        from bench.citations.chart import draw  # matplotlib is slow to import, not always wanted

        draw(result, options.chart)
        console.print(f"chart: {options.chart}")
    return 0 if _sound(result) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench gat", description=__doc__)
    what = parser.add_argument_group("workload")
    what.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with cora.npz and citeseer.npz (bench/README.md has the layout)",
    )
    what.add_argument(
        "--dataset", type=_some_of(DATASETS), default=list(DATASETS), help=", ".join(DATASETS)
    )
    what.add_argument(
        "--columns", type=_some_of(COLUMNS), default=list(COLUMNS), help=", ".join(COLUMNS)
    )
    how = parser.add_argument_group("run")
    how.add_argument("--seeds", type=_positive, default=SEEDS, help=f"seeds 0, 1, ... ({SEEDS})")
    how.add_argument("--epochs", type=_positive, default=EPOCHS, help=f"at most ({EPOCHS})")
    how.add_argument(
        "--batch-seeds",
        type=_positive,
        help=f"seeds trained at once; default: {GPU_BATCH} on a GPU, 1 on a CPU",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--json", type=Path, help="write the record here")
    out.add_argument("--chart", type=Path, help="draw the record here (.svg or .png)")
    return parser


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


def _some_of(names: dict[str, Any]) -> Any:
    """An argparse type: names after commas, returned in the order of `names`."""

    def parse(text: str) -> list[str]:
        given = text.split(",")
        unknown = [name for name in given if name not in names]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(names)}")
        return [name for name in names if name in given]

    return parse


def _describe(options: argparse.Namespace, graphs: dict[str, CitationGraph]) -> Record:
    """The record before anything ran."""
    device, machine = probe(), describe_machine()
    on_gpu = device["backend"] == "gpu"
    if device["device"] == "cpu":
        device["device"] = machine["cpu"]
    batch = options.batch_seeds or (GPU_BATCH if on_gpu else 1)
    notes = []
    if on_gpu:
        notes.append(f"Every process runs with {' '.join(PINNED_FLAGS)}: two may pick two matmuls.")
    return {
        "benchmark": "gat",
        "device": device,
        "machine": machine,
        "seeds": options.seeds,
        "batch_seeds": min(batch, options.seeds),
        "max_epochs": options.epochs,
        "patience": PATIENCE,
        "datasets": {name: graph.describe() | {"columns": {}} for name, graph in graphs.items()},
        "notes": notes,
    }


def _run(
    options: argparse.Namespace,
    result: Record,
    title: str,
    column: str,
    path: Path,
    folder: Path,
    progress: Progress,
) -> Record:
    """One column on one dataset: a process that trains, and one that does so again."""
    batch = result["batch_seeds"]
    job = Job(column, tuple(range(options.seeds)), batch, options.epochs, repeat=True)
    again = dataclasses.replace(job, seeds=job.seeds[:batch], repeat=False)
    flags = PINNED_FLAGS if result["device"]["backend"] == "gpu" else ()
    records = []
    for what, some in ((title, job), (f"{title}, second process", again)):
        bar = progress.add_task(what, total=None)

        def follow(phase: str, done: int, total: int, what: str = what, bar: Any = bar) -> None:
            progress.update(bar, description=f"{what}: {phase}", completed=done, total=total)

        stem = folder / f"{path.stem}-{column}-{len(records)}"
        try:
            record = run_child(
                "bench.citations.worker", dataclasses.asdict(some), path, stem, flags, follow
            )
        except ColumnError as error:
            result["notes"].append(f"{what}: did not run. {str(error).splitlines()[-1]}")
            progress.update(bar, description=what, completed=1, total=1)
            return {"error": str(error)}
        seeds = len(some.seeds)
        progress.update(bar, description=what, completed=seeds, total=seeds)
        records.append(record)
    first, second = records
    first["second_process"] = compare_runs(first["runs"], second["runs"])
    backend = result["device"]["backend"]
    lowering = first.get("kernels", {}).get(DEVICES.get(backend, backend), "kernels")
    if not lowering.startswith("kernels"):
        result["notes"].append(f"{title} ran without its kernels: {lowering}.")
    return first | summarise(first["runs"])


def _sound(result: Record) -> bool:
    """Every column ran, and the one that promises its bits repeated them."""
    for dataset in result["datasets"].values():
        for name, record in dataset["columns"].items():
            if "error" in record:
                return False
            repeats = [record["same_process"], record["second_process"]]
            if name == SUBJECT and not all(repeat["equal"] for repeat in repeats):
                return False
    return True
