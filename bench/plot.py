# SPDX-License-Identifier: Apache-2.0
"""Chart of a main-job record, legible on light and dark pages. `python -m bench.plot IN OUT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # after the choice of a backend that needs no screen
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from bench.columns import COLUMNS
from bench.style import INK, STYLE, metadata

COLOURS = {
    "host": "#9aa2ad",
    "xla": "#d08700",
    "xla-deterministic": "#c2554d",
    "jax_index": "#2f81f7",
    "jax_index-fused": "#3fa45b",
}
SPARE_COLOUR = "#8957e5"


def draw(result: dict[str, Any], path: Path) -> None:
    """Write training and inference times and the loss of the columns that ran."""
    names = [name for name, record in result["columns"].items() if "error" not in record]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
        _bars(axes[0], result, names, "train_ms", "training, ms per step")
        _bars(axes[1], result, names, "infer_p50_ms_per_scenario", "inference p50, ms per scenario")
        _loss(axes[2], result, names)
        workload, machine = result["workload"], result["machine"]
        figure.suptitle(
            f"HetGAT, {workload['name']} ({workload['road_links']:,} road links), "
            f"{result.get('dtype', 'float32')}, "
            f"{result['device']['device']}, jax {machine['versions'].get('jax')}, "
            f"{machine['time'][:10]}",
            fontsize=11,
        )
        figure.savefig(path, transparent=True, dpi=160, metadata=metadata(path))
        plt.close(figure)


def _bars(ax: Axes, result: dict[str, Any], names: list[str], key: str, title: str) -> None:
    """Horizontal bars on a log axis, one group a column, one bar a batch size."""
    batches = result["batches"]
    height = 0.8 / len(batches)
    values = []
    for row, name in enumerate(names):
        for i, batch in enumerate(batches):
            value = result["columns"][name]["batches"][str(batch)].get(key)
            if value is None:
                continue
            values.append(value)
            place = row + (i - (len(batches) - 1) / 2) * height
            shade = 0.55 + 0.45 * (i + 1) / len(batches)
            ax.barh(place, value, height * 0.9, color=_colour(name), alpha=shade)
            text = f" {value:.3g}" if value < 100 else f" {value:,.0f}"
            ax.text(value, place, f"{text}  (B={batch})", va="center", fontsize=8.5)
    ax.set_yticks(range(len(names)), [COLUMNS[name].title for name in names])
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    if values:
        ax.set_xlim(min(values) / 2, max(values) * 6)
    ax.set_title(title, fontsize=10)
    _bare(ax)


def _loss(ax: Axes, result: dict[str, Any], names: list[str]) -> None:
    """Loss over steps at the batch size that is trained in full; the longest run lies below."""
    batch = str(result["learn_batch"])
    runs = {name: result["columns"][name]["batches"][batch]["losses"] for name in names}
    for name in sorted(names, key=lambda name: -len(runs[name])):
        ax.plot(range(1, len(runs[name]) + 1), runs[name], color=_colour(name), lw=1.6,
                label=COLUMNS[name].title)  # fmt: skip
    ax.set_ylim(bottom=0)
    ax.set_xlabel("step")
    ax.set_title(f"training loss, batch {batch}", fontsize=10)
    ax.legend(frameon=False, labelcolor=INK, fontsize=8.5)
    _bare(ax)


def _bare(ax: Axes) -> None:
    ax.patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)


def _colour(name: str) -> str:
    return COLOURS.get(name, SPARE_COLOUR)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
