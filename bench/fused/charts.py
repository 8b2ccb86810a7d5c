# SPDX-License-Identifier: Apache-2.0
"""Charts of a `bench fused` record, legible on light and dark pages.

`python -m bench.fused.charts RECORD.json FOLDER [svg|png]` draws a stored record again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from bench.fused.peers import SUBJECT, TITLES
from bench.kernels import charts
from bench.kernels.charts import INK, plt
from bench.kernels.table import count, number

Record = dict[str, Any]
COLOURS = {
    SUBJECT: charts.COLOURS[SUBJECT],
    "xla": charts.COLOURS["xla"],
    "cusparse-alg2": "#3fa45b",
    "cusparse-alg3": "#1f7a8c",
    "torch-csr": "#8957e5",
    "pyg": "#c2554d",
    "scipy": charts.COLOURS["scipy"],
}
MARKERS = {"xla": "o", "cusparse-alg2": "s", "cusparse-alg3": "D", "torch-csr": "P", "pyg": "X"}
MARKERS |= {"scipy": "^"}


def draw_all(result: Record, folder: Path, kind: str = "svg") -> list[Path]:
    """Draw both charts; return what was written."""
    both = (("times", _times_chart), ("peers", _peers))
    return charts.save(result, "fused", both, folder, kind)


def _peers(result: Record) -> Any:
    return charts.peer_chart(result, TITLES, COLOURS, MARKERS)


def _times_chart(result: Record) -> Any:
    """Time of every op of the headline shape, one panel a pattern; shorter is better."""
    lines = [r for r in charts.measured(result, dtype="float32") if r["group"] != "small"]
    if not lines:
        return None
    shape = _shape(lines[0])
    lines = [r for r in lines if _shape(r) == shape]
    patterns = list(dict.fromkeys(r["pattern"] for r in lines))
    ops = list(dict.fromkeys(r["op"] for r in lines))
    names = [n for n in TITLES if any("us" in r["times"].get(n, {}) for r in lines)]
    height = 0.84 / len(names)
    size = (5.2 * len(patterns) + 1, 1.6 + 0.17 * len(names) * len(ops))
    figure, axes = plt.subplots(
        1, len(patterns), figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    for ax, pattern in zip(axes[0], patterns, strict=True):
        for record in (r for r in lines if r["pattern"] == pattern):
            row = ops.index(record["op"])
            limit = record["limit"]
            ax.plot([limit["once"]] * 2, [row - 0.45, row + 0.45], color=INK, lw=1, ls=":")
            ax.plot([limit["no_reuse"]] * 2, [row - 0.45, row + 0.45], color=INK, lw=1)
            for i, name in enumerate(names):
                us = record["times"].get(name, {}).get("us")
                if us is not None:
                    place = row + (i - (len(names) - 1) / 2) * height
                    ax.barh(place, us, height * 0.92, color=COLOURS[name])
                    ax.text(us, place, f" {number(us)}", va="center", fontsize=6.5)
        ax.set_xscale("log")
        ax.set_xlim(ax.get_xlim()[0], ax.get_xlim()[1] * 2.5)
        ax.set_title(pattern, fontsize=10)
        ax.set_xlabel("microseconds; lines: limit once (dotted), no reuse")
        charts.bare(ax)
    axes[0][0].set_yticks(range(len(ops)), ops)
    axes[0][0].invert_yaxis()
    figure.legend(
        [plt.Rectangle((0, 0), 1, 1, color=COLOURS[n]) for n in names],
        [TITLES[n] for n in names],
        frameon=False, labelcolor=INK, fontsize=9, loc="outside lower center", ncols=len(names),
    )  # fmt: skip
    n, m, width = shape
    figure.suptitle(
        f"Ops on graphs, {count(n)} nodes, {count(m)} edges, {width} float32\n"
        f"{charts.where(result)}",
        fontsize=11,
    )
    return figure


def _shape(record: Record) -> tuple[int, int, int]:
    return record["num_rows"], record["num_edges"], record["width"]


if __name__ == "__main__":
    for drawn in draw_all(
        json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), *sys.argv[3:]
    ):
        print(drawn)
