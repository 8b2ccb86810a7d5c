# SPDX-License-Identifier: Apache-2.0
"""Charts of a `bench ops` record, legible on light and dark pages.

`python -m bench.kernels.charts RECORD.json FOLDER [svg|png]` draws a stored record again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt  # after the choice of a backend that needs no screen
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from bench.kernels.peers import SUBJECT, TITLES
from bench.kernels.table import count, number
from bench.style import INK, STYLE, metadata

Record = dict[str, Any]
COLOURS = {
    SUBJECT: "#2f81f7",
    "xla": "#d08700",
    "xla-sorted": "#e3b341",
    "xla-deterministic": "#c2554d",
    "torch-select": "#3fa45b",
    "torch-add": "#3fa45b",
    "torch-deterministic": "#1f7a8c",
    "torch-segment": "#8957e5",
    "numpy": "#9aa2ad",
    "scipy": "#b07cc6",
}
MARKERS = {"xla": "o", "xla-sorted": "v", "xla-deterministic": "X", "torch-select": "s"}
MARKERS |= {"torch-add": "s", "torch-deterministic": "P", "torch-segment": "D", "scipy": "^"}
OPS = ("gather", "scatter_add")
REAL_PEERS = {"gather": ("torch-select", "numpy"), "scatter_add": ("torch-add", "scipy")}


def draw_all(result: Record, folder: Path, kind: str = "svg") -> list[Path]:
    """Draw every chart that the record has lines for; return what was written."""
    charts = (
        ("limit", _limit_chart), ("peers", peer_chart), ("real", _real_chart),
        ("scale", _scale_chart),
    )  # fmt: skip
    return save(result, "ops", charts, folder, kind)


def save(result: Record, stem: str, charts: Any, folder: Path, kind: str) -> list[Path]:
    """Draw charts, (name, result -> figure or None), in this style."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with plt.rc_context(STYLE):
        for name, draw in charts:
            figure = draw(result)
            if figure is None:
                continue
            path = folder / f"{stem}-{name}-{result['device']['backend']}.{kind}"
            figure.savefig(path, transparent=True, dpi=160, metadata=metadata(path))
            plt.close(figure)
            written.append(path)
    return written


def measured(result: Record, **wanted: Any) -> list[Record]:
    """The lines with a time of jax_index that have these fields."""
    lines = [r for r in result["lines"] if "us" in r["times"].get(SUBJECT, {})]
    return [r for r in lines if all(r.get(key) == value for key, value in wanted.items())]


def _headline(result: Record, op: str) -> list[Record]:
    """The float32 lines of the commonest shape of wide rows, one a pattern."""
    lines = [r for r in measured(result, op=op, dtype="float32") if r["width"] == 64]
    lines = [r for r in lines if r["group"] in ("wide", "custom")]
    if not lines:
        lines = [
            r
            for r in measured(result, op=op, dtype="float32")
            if r["group"] not in ("scale", "real")
        ]
    return list({r["pattern"]: r for r in lines}.values())


def where(result: Record) -> str:
    """Device, version, day and commit."""
    machine, commit = result["machine"], result["machine"].get("commit")
    device = result["device"]["device"]
    device = machine["cpu"] if device == "cpu" else device
    return (
        f"{device}, jax {machine['versions'].get('jax')}, {machine['time'][:10]}"
        + (f", commit {commit}" if commit else "")
    )  # fmt: skip


def _limit_chart(result: Record) -> Any:
    """Share of the memory limit by pattern, one panel an op; longer is better."""
    panels = {op: _headline(result, op) for op in OPS}
    if not any(panels.values()):
        return None
    rows = max(len(lines) for lines in panels.values())
    figure, axes = plt.subplots(1, 2, figsize=(12, 1.6 + 0.5 * rows), layout="constrained")
    for ax, (op, lines) in zip(axes, panels.items(), strict=True):
        names = [SUBJECT, "xla", "torch-select" if op == "gather" else "torch-add"]
        names = [n for n in names if any("us" in r["times"].get(n, {}) for r in lines)]
        height = 0.8 / max(len(names), 1)
        for k, record in enumerate(lines):
            for i, name in enumerate(names):
                entry = record["times"].get(name, {})
                if "us" not in entry:
                    continue
                share = record["limit"]["once"] / entry["us"]
                place = k + (i - (len(names) - 1) / 2) * height
                ax.barh(place, share, height * 0.92, color=COLOURS[name],
                        label=TITLES[name] if k == 0 else None)  # fmt: skip
                ax.text(share, place, f" {share:.0%}", va="center", fontsize=7.5)
        ax.set_yticks(range(len(lines)), [r["pattern"] for r in lines])
        ax.invert_yaxis()
        ax.axvline(1, color=INK, lw=1, ls=":")
        ax.set_xlim(0, max(1.15, *(ax.get_xlim()[1] * 1.05,)))
        ax.xaxis.set_major_formatter(PercentFormatter(1))
        shape = ""
        if lines:
            r = lines[0]
            shape = f" ({count(r['num_rows'])} rows, {count(r['num_edges'])} edges, {r['width']})"
        ax.set_title(f"{op}{shape}", fontsize=10)
        bare(ax)
    legend(figure, axes)
    figure.suptitle(
        f"Share of the memory limit: every row once, at measured bandwidth\n{where(result)}",
        fontsize=11,
    )
    return figure


def peer_chart(
    result: Record, titles: Record = TITLES, colours: Record = COLOURS, markers: Record = MARKERS
) -> Any:
    """Most lines: how many times our time each peer takes; left of 1 we lose.

    Left out are groups with charts of their own, and those of many lines.
    """
    lines = [r for r in measured(result) if len(r["times"]) > 1]
    names = [n for n in titles if n != SUBJECT]
    points: dict[str, list[tuple[int, float]]] = {n: [] for n in names}
    order: list[Record] = []
    for op in dict.fromkeys(r["op"] for r in lines):
        order += [
            r
            for r in lines
            if r["op"] == op and r["group"] not in ("scale", "widths", "full", "real")
        ]
    for row, record in enumerate(order):
        for name in names:
            entry = record["times"].get(name, {})
            if "us" in entry:
                points[name].append((row, entry["us"] / record["times"][SUBJECT]["us"]))
    if not any(points.values()):
        return None
    figure, ax = plt.subplots(figsize=(10, 1.5 + 0.21 * len(order)), layout="constrained")
    ax.axvspan(1e-9, 1, color="#c2554d", alpha=0.10, lw=0)
    ax.axvline(1, color=INK, lw=1)
    for name, found in points.items():
        if found:
            ax.scatter([x for _, x in found], [y for y, _ in found], s=26, color=colours[name],
                       marker=markers.get(name, "o"), label=titles[name], zorder=3)  # fmt: skip
    ax.set_yticks(range(len(order)), [short(r) for r in order], fontsize=7)
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.set_xscale("log")
    values = [x for found in points.values() for _, x in found]
    low, high = min(0.5, min(values) / 1.3), max(values) * 1.3
    ax.set_xlim(low, high)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}x"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.grid(axis="x", color=INK, alpha=0.25, lw=0.6)
    ax.set_xlabel("time of the peer / time of jax_index; in the red field jax_index loses")
    ax.legend(frameon=False, labelcolor=INK, fontsize=8.5, ncols=4, loc="lower center",
              bbox_to_anchor=(0.4, 1.0))  # fmt: skip
    figure.suptitle(where(result), fontsize=10)
    bare(ax)
    return figure


def short(record: Record) -> str:
    """Op, pattern, sizes and dtype."""
    dtype = "" if record["dtype"] == "float32" else f" {record['dtype']}"
    size = f"{count(record['num_rows'])}, {count(record['num_edges'])}, {record['width']}"
    return f"{record['op']} {record['pattern']} ({size}){dtype}"


def _scale_chart(result: Record) -> Any:
    """Nanoseconds an element against the number of elements, one panel an op and width."""
    lines = measured(result, group="scale")
    widths = sorted({r["width"] for r in lines}, reverse=True)
    if not lines:
        return None
    figure, axes = plt.subplots(
        len(widths), 2, figsize=(12, 0.8 + 3.6 * len(widths)), layout="constrained",
        sharex=True, squeeze=False,
    )  # fmt: skip
    for across, width in zip(axes, widths, strict=True):
        for ax, op in zip(across, OPS, strict=True):
            _scale_panel(ax, [r for r in lines if r["op"] == op and r["width"] == width])
            row = "one float32" if width == 1 else f"{width} float32"
            ax.set_title(f"{op}, a row is {row}", fontsize=10)
        across[0].set_ylabel("ns an element")
    for ax in axes[-1]:
        ax.set_xlabel("elements on the edge side (line: 2³¹)")
    legend(figure, axes.flat)
    figure.suptitle(
        f"Cost against size, random ids, 8 edges a row, kernels alone\n{where(result)}"
        if result["device"]["backend"] == "gpu"
        else f"Cost against size, random ids, 8 edges a row\n{where(result)}",
        fontsize=11,
    )
    return figure


def _scale_panel(ax: Axes, lines: list[Record]) -> None:
    lines = sorted(lines, key=lambda r: r["num_edges"])
    elements = [r["num_edges"] * r["width"] for r in lines]

    def draw(found: list[float | None], **style: Any) -> None:
        points = [(m, us / m * 1e3) for m, us in zip(elements, found, strict=True) if us]
        ax.plot([m for m, _ in points], [ns for _, ns in points], **style)

    for name in TITLES:
        found = [r["times"].get(name, {}).get("us") for r in lines]
        if any(found):
            draw(found, color=COLOURS[name], marker=MARKERS.get(name, "o"), ms=4,
                 lw=2 if name == SUBJECT else 1.2, label=TITLES[name])  # fmt: skip
    limits = (("once", ":", "every row once from memory"), ("no_reuse", "-.", "every edge anew"))
    for key, style, label in limits:
        draw([r["limit"][key] for r in lines], color=INK, ls=style, lw=1.2, label=label)
    if max(elements, default=0) > 2**30:
        ax.axvline(2**31, color=INK, lw=0.8, alpha=0.6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    _plain(ax.yaxis)
    ax.grid(color=INK, alpha=0.2, lw=0.6)
    bare(ax)


def _plain(axis: Any) -> None:
    """Numbers on a logarithmic axis as 0.2 and 5,000; more of them where it is short."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _real_chart(result: Record) -> Any:
    """Microseconds on real index arrays, one panel an op; shorter is better."""
    lines = measured(result, group="real")
    if not lines:
        return None
    inputs = list(dict.fromkeys(r["pattern"] for r in lines))
    shown = {op: [SUBJECT, "xla", *peers] for op, peers in REAL_PEERS.items()}
    figure, axes = plt.subplots(
        1, 2, figsize=(12, 1.6 + 0.46 * len(inputs)), layout="constrained", sharey=True
    )
    for ax, (op, names) in zip(axes, shown.items(), strict=True):
        names = [n for n in names if any("us" in r["times"].get(n, {}) for r in lines)]
        height = 0.8 / max(len(names), 1)
        for record in (r for r in lines if r["op"] == op):
            row = inputs.index(record["pattern"])
            ax.plot([record["limit_us"]] * 2, [row - 0.45, row + 0.45], color=INK, lw=1.2, ls=":")
            for i, name in enumerate(names):
                us = record["times"].get(name, {}).get("us")
                if us is not None:
                    place = row + (i - (len(names) - 1) / 2) * height
                    ax.barh(place, us, height * 0.92, color=COLOURS[name],
                            label=TITLES[name])  # fmt: skip
                    ax.text(us, place, f" {number(us)}", va="center", fontsize=7)
        least = [min(r["times"][SUBJECT]["us"], r["limit_us"]) for r in lines if r["op"] == op]
        ax.set_xscale("log")
        ax.set_xlim(min(least, default=1) / 2, ax.get_xlim()[1] * 2)
        _plain(ax.xaxis)
        ax.set_xlabel("microseconds; dotted: limit of the memory or the cache")
        ax.set_title(op, fontsize=10)
        bare(ax)
    sizes = {r["pattern"]: f"{count(r['num_rows'])}, {count(r['num_edges'])}, {r['width']}"
             for r in lines}  # fmt: skip
    axes[0].set_yticks(range(len(inputs)), [f"{i} ({sizes[i]})" for i in inputs], fontsize=8)
    axes[0].invert_yaxis()
    legend(figure, axes)
    figure.suptitle(
        f"Real graphs, road networks and traces (rows, edges, width)\n{where(result)}", fontsize=11
    )
    return figure


def legend(figure: Any, axes: Iterable[Axes]) -> None:
    """One legend for all panels, below them."""
    first: dict[str, Any] = {}
    for ax in axes:
        handles, labels = ax.get_legend_handles_labels()
        first |= dict(zip(labels, handles, strict=True))
    figure.legend(
        first.values(), first.keys(), frameon=False, labelcolor=INK, fontsize=9,
        loc="outside lower center", ncols=len(first),
    )  # fmt: skip


def bare(ax: Axes) -> None:
    """No frame but the two axes."""
    ax.patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    for drawn in draw_all(
        json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), *sys.argv[3:]
    ):
        print(drawn)
