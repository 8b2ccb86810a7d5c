# SPDX-License-Identifier: Apache-2.0
"""A record of `bench ops` as tables for a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from bench.kernels.peers import SUBJECT, TITLES

Record = dict[str, Any]
GROUP_TITLES = {
    "wide": "wide rows, every pattern",
    "16": "rows of 16",
    "scalar": "one number a row",
    "dtypes": "other dtypes",
    "small": "small graphs",
    "widths": "widths, uniform",
    "scale": "cost against size",
    "gradient": "gradients",
    "real": "real inputs",
    "full": "whole grid",
    "custom": "chosen lines",
}


def print_report(
    console: Console, result: Record, titles: Record = TITLES, groups: Record = GROUP_TITLES
) -> None:
    """Ceilings, one table a group, what was missed and what failed."""
    c = result["ceilings"]
    cache = ", ".join(
        f"{rate / 1e12:.2f} out of {int(size) >> 20} MiB" for size, rate in c["cache"].items()
    )
    device = result["device"]
    console.print(
        f"{device['device']}, jax {result['machine']['versions'].get('jax')}: read "
        f"{c['read'] / 1e12:.3g}, write {c['write'] / 1e12:.3g}, copy {c['copy'] / 1e12:.3g} TB/s; "
        f"cache {cache} TB/s; an empty call {c['empty_call_us']:.3g} us."
    )
    for group in dict.fromkeys(r["group"] for r in result["lines"]):
        records = [r for r in result["lines"] if r["group"] == group]
        console.print(_table(groups.get(group, group), records, titles))
    for sentence in failures(result["lines"], titles):
        console.print(f"[red]failed[/red] {sentence}", soft_wrap=True)
    for case in result.get("cases", []):
        console.print(case_sentence(case))
    for verdict in result.get("verdicts", []):
        console.print(f"{verdict['what']}: {verdict_text(verdict)}")
    met = [v["met"] for r in result["lines"] for v in r.get("verdicts", [])]
    console.print(f"targets met: {sum(met)} of {len(met)}.")
    for note in result["notes"]:
        console.print(f"[dim]{note}[/dim]")


def case_sentence(case: Record) -> str:
    """One sentence of a case of the performance list."""
    if "error" in case:
        return f"{case['case']}: [red]failed[/red], {case['error']}"
    if "skipped" in case:
        return f"[dim]{case['case']}: left out, {case['skipped']}[/dim]"
    mark = "[green]ok[/green]" if case["met"] else "[red]missed[/red]"
    return f"{case['case']}: {case['text']} {mark}"


def _table(title: str, records: list[Record], titles: Record) -> Table:
    peers = [
        name
        for name in titles
        if name != SUBJECT and any("us" in r["times"].get(name, {}) for r in records)
    ]
    table = Table(title=title, title_justify="left")
    table.add_column("line", no_wrap=True)
    table.add_column("limit us\nonce / no reuse / cache", justify="right", no_wrap=True)
    table.add_column("jax_index\nus", justify="right", no_wrap=True)
    table.add_column("share of\nlimit", justify="right", no_wrap=True)
    for name in peers:
        table.add_column(titles[name].replace(" ", "\n", 1) + "\nus (times)", justify="right")
    table.add_column("targets", no_wrap=True)
    for record in records:
        table.add_row(*_row(record, peers))
    return table


def failures(records: list[Record], titles: Record = TITLES) -> list[str]:
    """One sentence for every error text: its first line, where, and how often."""
    found: dict[str, list[str]] = {}
    for record in records:
        title = line_title(record)
        errors = [("", record["error"])] if "error" in record else []
        errors += [
            (titles[k] + ", ", e["error"]) for k, e in record["times"].items() if "error" in e
        ]
        for who, error in errors:
            first = (error.splitlines() or ["unknown"])[0][:200]
            found.setdefault(first, []).append(who + title)
    return [
        f"{places[0]}{f' and {len(places) - 1} more' if len(places) > 1 else ''}: {error}"
        for error, places in found.items()
    ]


def line_title(record: Record) -> str:
    """The op, pattern, sizes and dtype of a record, short."""
    sizes = f"{count(record.get('num_rows'))}, {count(record.get('num_edges'))}, {record['width']}"
    dtype = "" if record["dtype"] == "float32" else f" {record['dtype']}"
    return f"{record['op']} {record['pattern']} ({sizes}){dtype}"


def count(value: int | None) -> str:
    """A count in short: 512k, 4M where it is one, else in thousands."""
    if value is None:
        return "?"
    for unit, size in (("M", 2**20), ("k", 2**10), ("M", 10**6), ("k", 10**3)):
        if value >= size and value % size == 0:
            return f"{value // size}{unit}"
    return f"{value:,}"


def _row(record: Record, peers: list[str]) -> list[str]:
    title = line_title(record)
    own = record["times"].get(SUBJECT, {})
    if "error" in record:
        return [title, "", "[red]failed[/red]", "", *("" for _ in peers), ""]
    limit = record["limit"]
    marks = {k: number(limit[k]) for k in ("once", "no_reuse", "cache")}
    marks[limit["judged_by"]] = f"[bold]{marks[limit['judged_by']]}[/bold]"
    us = own.get("us")
    shown = number(us) if us else "[red]failed[/red]" if "error" in own else "-"
    cells = [title, " / ".join(marks.values()), shown, f"{own['share']:.0%}" if us else ""]
    cells += [_peer(record["times"].get(name, {}), us) for name in peers]
    verdicts = [verdict_text(v) for v in record.get("verdicts", [])]
    return [*cells, "\n".join(verdicts)]


def _peer(entry: Record, us: float | None) -> str:
    if "us" not in entry:
        return "[red]failed[/red]" if "error" in entry else "-"
    text = number(entry["us"])
    if us:
        ratio = entry["us"] / us
        times = f"{ratio:,.3g}" if ratio < 1000 else f"{ratio:,.0f}"
        text += f" ([red]{times}[/red])" if ratio < 1 else f" ({times})"
    return text if entry.get("accurate", True) else text + " [red]inexact[/red]"


def verdict_text(verdict: Record) -> str:
    """As `share 0.87 >= 0.85`, green or red."""
    sign = ">=" if verdict["at_least"] else "<="
    colour = "green" if verdict["met"] else "red"
    words = f"{verdict['figure']} {verdict['value']:.3g} {sign} {verdict['bound']:g}"
    return f"[{colour}]{words}[/{colour}]"


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
