# SPDX-License-Identifier: Apache-2.0
"""Chart of a `bench gat` record. `python -m bench.citations.chart RECORD.json CHART.svg`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # after the choice of a backend that needs no screen
from matplotlib.axes import Axes

from bench.citations.attention import COLUMNS
from bench.citations.report import PUBLISHED, percent
from bench.plot import COLOURS
from bench.style import INK, STYLE, metadata


def draw(result: dict[str, Any], path: Path) -> None:
    """For each dataset, the accuracies beside the published one and the first seed's curves."""
    datasets = result["datasets"]
    with plt.rc_context(STYLE):
        size = (11, 3.3 * len(datasets))
        figure, axes = plt.subplots(
            len(datasets), 2, figsize=size, layout="constrained", squeeze=False, width_ratios=(2, 3)
        )
        for (key, dataset), (left, right) in zip(datasets.items(), axes, strict=True):
            ran = {n: r for n, r in dataset["columns"].items() if "error" not in r}
            _accuracies(left, dataset["title"], PUBLISHED.get(key), ran)
            _curves(right, dataset["title"], ran)
        machine = result["machine"]
        figure.suptitle(
            f"GAT, seeds: {result['seeds']}, float32, {result['device']['device']}, "
            f"jax {machine['versions'].get('jax')}, {machine['time'][:10]}",
            fontsize=11,
        )
        figure.savefig(path, transparent=True, dpi=160, metadata=metadata(path))
        plt.close(figure)


def _accuracies(
    ax: Axes, title: str, published: tuple[float, float] | None, columns: dict[str, Any]
) -> None:
    """One dot a seed, mean and deviation beside them, the published ones as a band."""
    if published:
        mean, deviation = (100 * x for x in published)
        ax.axhspan(mean - deviation, mean + deviation, color=INK, alpha=0.18, lw=0)
        ax.axhline(mean, color=INK, lw=1, label=f"published, {percent(*published)}")
    for place, (name, record) in enumerate(columns.items()):
        values = [100 * run["test_accuracy"] for run in record["runs"]]
        # Spread by seed, so that equal accuracies stay apart.
        spread = [place - 0.15 + 0.3 * (i + 0.5) / len(values) for i in range(len(values))]
        ax.plot(spread, values, "o", ms=4, alpha=0.7, mew=0, color=COLOURS[name])
        mean, deviation = (100 * (record[f"test_accuracy_{k}"] or 0) for k in ("mean", "std"))
        ax.errorbar(
            place + 0.25, mean, deviation, fmt="s", ms=5, capsize=3, color=COLOURS[name],
            label=f"{COLUMNS[name].title}, {percent(mean / 100, record['test_accuracy_std'])}",
        )  # fmt: skip
    ax.set_xlim(-0.5, len(columns) - 0.3)
    ax.set_xticks(range(len(columns)), [COLUMNS[name].title for name in columns])
    ax.set_title(f"{title}: test accuracy, %", fontsize=10)
    ax.margins(y=0.3)
    _bare(ax)


def _curves(ax: Axes, title: str, columns: dict[str, Any]) -> None:
    """Training loss (with dropout and weight decay) and validation loss of the first seed."""
    for i, (name, record) in enumerate(columns.items()):
        run = record["runs"][0]
        epochs = range(1, run["epochs"] + 1)
        # The first column is drawn thicker, so that it is seen beneath an equal one.
        width = 1.2 + 1.2 * (i == 0 and len(columns) > 1)
        label = COLUMNS[name].title
        ax.plot(epochs, run["curve"]["loss"], color=COLOURS[name], lw=width / 2, alpha=0.5)
        ax.plot(epochs, run["curve"]["val_loss"], color=COLOURS[name], lw=width, label=label)
        ax.axvline(run["chosen_epoch"], color=COLOURS[name], lw=1, ls=":")
    ax.set_ylim(bottom=0)
    ax.set_xlabel("epoch")
    ax.set_title(
        f"{title}, seed 0: training loss (thin), validation loss, chosen epoch", fontsize=10
    )
    _bare(ax)


def _bare(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(frameon=False, labelcolor=INK, fontsize=8.5)
    ax.patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
