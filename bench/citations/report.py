# SPDX-License-Identifier: Apache-2.0
"""The record of `bench gat` as a table, on the screen and in Markdown.

`python -m bench.citations.report RECORD.json [PAGE.md]`: with a page, what stands between its lines
`<!-- gat table -->` and `<!-- end of gat table -->` is replaced; without, the table is printed.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.citations.attention import COLUMNS

Record = dict[str, Any]
PUBLISHED = {"cora": (0.830, 0.007), "citeseer": (0.725, 0.007)}  # table 2 of the paper
BEGIN, END = "<!-- gat table -->", "<!-- end of gat table -->"


def summarise(runs: list[Record]) -> Record:
    """Mean and sample standard deviation of the test accuracy, and mean epochs."""
    accuracies = [run["test_accuracy"] for run in runs]
    return {
        "test_accuracy_mean": statistics.fmean(accuracies),
        "test_accuracy_std": statistics.stdev(accuracies) if len(runs) > 1 else None,
        "epochs_mean": statistics.fmean(run["epochs"] for run in runs),
        "chosen_epoch_mean": statistics.fmean(run["chosen_epoch"] for run in runs),
    }


def ms_per_epoch(record: Record) -> float:
    """Training time over the epochs of all seeds, compilation left out."""
    return record["train_seconds"] * 1e3 / sum(run["epochs"] for run in record["runs"])


FIGURES: tuple[tuple[str, Callable[[Record], str]], ...] = (
    (
        "test accuracy %",
        lambda r: percent(r["test_accuracy_mean"], r["test_accuracy_std"]),
    ),
    ("epochs, mean", lambda r: f"{r['epochs_mean']:.0f}"),
    ("chosen epoch, mean", lambda r: f"{r['chosen_epoch_mean']:.0f}"),
    ("ms per epoch and seed", lambda r: f"{ms_per_epoch(r):.3g}"),
    ("training s, all seeds", lambda r: f"{r['train_seconds']:.3g}"),
    ("same bits, same process", lambda r: repeated(r["same_process"])),
    ("same bits, second process", lambda r: repeated(r["second_process"])),
)


def percent(mean: float, deviation: float | None) -> str:
    """Accuracy as papers print it; one seed has no deviation."""
    return f"{mean * 100:.1f}" + ("" if deviation is None else f" ± {deviation * 100:.1f}")


def repeated(comparison: Record) -> str:
    """Whether a repeated run had the same bits, and if not, what is left of them."""
    if comparison["equal"]:
        return "yes"
    both = min(comparison["equal_curves"], comparison["equal_weights"])
    epoch = comparison["first_differing_epoch"]
    since = f", first seed from epoch {epoch} on" if epoch else ""
    return f"no ({both} of {comparison['seeds']} seeds{since})"


def table(result: Record) -> tuple[list[str], list[list[str]]]:
    """Head and rows: one row a figure of a dataset, one cell a column."""
    names = list(next(iter(result["datasets"].values()))["columns"])
    head = ["", "published", *(COLUMNS[name].title for name in names)]
    rows = []
    for key, dataset in result["datasets"].items():
        for i, (title, figure) in enumerate(FIGURES):
            published = percent(*PUBLISHED[key]) if i == 0 and key in PUBLISHED else ""
            cells = [
                "error" if "error" in record else figure(record)
                for record in dataset["columns"].values()
            ]
            rows.append([f"{dataset['title']}: {title}", published, *cells])
    return head, rows


def caption(result: Record) -> str:
    """What the figures are of."""
    machine = result["machine"]
    return (
        f"seeds: {result['seeds']}, {result['batch_seeds']} at a time, at most "
        f"{result['max_epochs']} epochs; {result['device']['device']}, "
        f"jax {machine['versions'].get('jax')}, commit {machine.get('commit')}, "
        f"{machine['time'][:10]}"
    )


def print_report(console: Console, result: Record) -> None:
    """The table and the notes."""
    head, rows = table(result)
    shown = Table(title=f"GAT (Velickovic et al. 2018)\n{caption(result)}")
    for i, title in enumerate(head):
        shown.add_column(title, justify="right" if i else "left")
    for row in rows:
        shown.add_row(*row, end_section=row[0].endswith(FIGURES[-1][0]))
    console.print(shown)
    for note in result["notes"]:
        console.print(f"[dim]{note}[/dim]")


def markdown(result: Record) -> str:
    """The same table for a page."""
    head, rows = table(result)
    rule = ["---", *["---:"] * (len(head) - 1)]
    lines = ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]
    return "\n".join([*lines, "", caption(result) + "."])


def replace_between_markers(page: str, text: str) -> str:
    """The page with `text` between its two markers."""
    if BEGIN not in page or END not in page:
        raise SystemExit(f"the page needs the lines {BEGIN} and {END}")
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}"


if __name__ == "__main__":
    written = markdown(json.loads(Path(sys.argv[1]).read_text()))
    if len(sys.argv) > 2:
        target = Path(sys.argv[2])
        target.write_text(replace_between_markers(target.read_text(), written))
    else:
        print(written)
