# SPDX-License-Identifier: Apache-2.0
"""Markdown of a record: `python -m bench.kernels.readme RECORD.json [PAGE.md]`.

With a page, what stands between its lines `<!-- ops table -->` and `<!-- end of ops table -->` is
replaced; without, it is printed. Every target comes with its figures, and every lost line is named.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.kernels import targets
from bench.kernels.peers import SUBJECT, TITLES
from bench.kernels.table import count, number

Record = dict[str, Any]
BEGIN, END = "<!-- ops table -->", "<!-- end of ops table -->"
TABLES = (
    ("", ("wide", "16", "scalar", "dtypes", "small", "custom")),
    ("Real graphs, road networks and traces:", ("real",)),
    ("Cost against size:", ("scale",)),
)
LOSS = 0.97  # a peer that takes less than so much of our time wins; below is noise
NAMED = 6  # lines of a target that are named, the worst ones
LIBRARIES = {
    "XLA": ("xla", "xla-sorted"),
    "XLA deterministic": ("xla-deterministic",),
    "torch": tuple(name for name in TITLES if name.startswith("torch")),
    "NumPy": ("numpy",),
    "SciPy": ("scipy",),
}
FIGURES = {
    "share": "share of the judging limit",
    "share once": "share of the limit",
    "us": "us",
    "replay us": "us, replayed as a CUDA graph",
    "xla": "XLA's time over ours",
    "host": "NumPy's or SciPy's time over ours",
    "copy": "of copy bandwidth",
    "of float32": "of float32's time",
    "of lanes": "of the share of rows of 64 numbers",
}


def markdown(result: Record) -> str:
    """Both ops side by side, real inputs, what was measured how, targets, and lost lines."""
    lines = [r for r in result["lines"] if "us" in r["times"].get(SUBJECT, {})]
    backend = result["device"]["backend"]
    whole = targets.judge(result["lines"], backend, result["ceilings"]["copy"])
    text = []
    for heading, groups in TABLES:
        found = [r for r in lines if r["group"] in groups]
        if found:
            text += [*([heading, ""] if heading else []), *pairs(found), ""]
    text += [caption(result), "", *target_table(lines, whole)]
    missing = targets.unmeasured(lines, backend)
    for t in missing:
        label = f"{t.what}: {FIGURES[t.figure]}"
        text.append(row([label, _bound(t.bound, t.at_least), "-", "not measured in this run"]))
    text += ["", *losses(result, TITLES)]
    return "\n".join(text)


def pairs(lines: Sequence[Record]) -> list[str]:
    """One row for each index array, width and dtype; gather on the left, scatter_add right."""
    rows: dict[str, dict[str, Record]] = {}
    for record in lines:
        rows.setdefault(place(record), {})[record["op"]] = record
    columns = [
        (op, name)
        for op in ("gather", "scatter_add")
        for name in (SUBJECT, *LIBRARIES)
        if any(_cell(row.get(op), name) for row in rows.values())
    ]
    titles = [f"{op} us (of limit)" if name == SUBJECT else name for op, name in columns]
    text = [row(["pattern (rows, edges, width)", *titles])]
    text.append(row(["---", *["---:"] * len(columns)]))
    for title_, both in rows.items():
        text.append(row([title_, *(_cell(both.get(op), name) or "-" for op, name in columns)]))
    return text


def _cell(record: Record | None, name: str) -> str:
    """Our time and share of the limit, or a library's time and, in brackets, times ours."""
    if record is None:
        return ""
    own = record["times"][SUBJECT]
    if name != SUBJECT:
        found = best(record, LIBRARIES[name])
        return peer(found, own["us"]) if found else ""
    replay = own.get("graph", {}).get("us")
    extra = f"; replayed {number(replay)}" if replay else ""
    return f"**{number(own['us'])}** ({record['limit']['once'] / own['us']:.0%}{extra})"


def place(record: Record) -> str:
    """Pattern, sizes and dtype."""
    dtype = "" if record["dtype"] == "float32" else f" {record['dtype']}"
    size = f"{count(record['num_rows'])}, {count(record['num_edges'])}, {record['width']}"
    return f"{record['pattern']} ({size}){dtype}"


def title(record: Record) -> str:
    """Op, pattern, sizes and dtype."""
    return f"`{record['op']}` {place(record)}"


def caption(result: Record) -> str:
    """What the figures were measured on, and how."""
    machine, ceilings = result["machine"], result["ceilings"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if k != "jax_index")
    device = result["device"]["device"]
    device = f"{machine['cpu']}, {machine['cores']} cores" if device == "cpu" else device
    return (
        f"{device}; {versions}; commit {machine.get('commit')}; {machine['time'][:10]}. Limit: "
        f"every row once at the bandwidths of the same run (read {ceilings['read'] / 1e12:.3g}, "
        f"write {ceilings['write'] / 1e12:.3g} TB/s). In brackets: times ours; the best of a "
        f"library's forms is shown. float32 unless said. {methods(result)}"
    )


def methods(result: Record) -> str:
    """How the shown times were taken: JAX's programs, and all other peers."""
    found = (Counter[str](), Counter[str]())
    for record in result["lines"]:
        for name, entry in record["times"].items():
            if "us" in entry:
                ours = name == SUBJECT or name.startswith("xla")
                found[0 if ours else 1][entry["method"]] += 1
    words = {
        "profiler": "kernels alone, by the profiler",
        "dispatch": "dispatched calls",
        "events": "events",
        "graph replay": "replays of a CUDA graph",
        "one call": "one call, where it takes 0.3 s or more",
    }
    told = [
        f"{who}: " + ", ".join(f"{words.get(k, k)} ({n})" for k, n in methods_.most_common())
        for who, methods_ in zip(("jax_index and XLA", "others"), found, strict=True)
        if methods_
    ]
    return f"Timed by: {'; '.join(told)}."


def target_table(lines: Sequence[Record], whole: Sequence[Record] = ()) -> list[str]:
    """Every target with its bound, how many lines meet it, and figures, missed ones bold."""
    groups: dict[tuple[Any, ...], list[tuple[Record | None, Record]]] = {}
    judged = [(r, v) for r in lines for v in r.get("verdicts", [])]
    for record, v in [*judged, *((None, v) for v in whole)]:
        key = (v["what"], v["figure"], v["bound"], v["at_least"])
        groups.setdefault(key, []).append((record, v))
    if not groups:
        return []
    total = [v["met"] for group in groups.values() for _, v in group]
    text = [
        f"Targets: {sum(total)} of {len(total)} figures met; missed ones are bold, worst first."
    ]
    text += ["", row(["target", "bound", "met", "figures"]), row(["---", "---:", "---:", "---"])]
    for (what, figure, bound, at_least), group in groups.items():
        group.sort(key=lambda pair: pair[1]["value"] * (1 if at_least else -1))
        names = [_figure(record, v, what) for record, v in group[:NAMED]]
        if len(group) > NAMED:
            names.append(f"and {len(group) - NAMED} more")
        met = sum(v["met"] for _, v in group)
        label = FIGURES.get(figure, figure)
        cells = [f"{what}: {label}", _bound(bound, at_least), f"{met} of {len(group)}"]
        text.append(row([*cells, ", ".join(names)]))
    return text


def _bound(bound: float, at_least: bool) -> str:
    return f"{'≥' if at_least else '≤'} {bound:g}"


def _figure(record: Record | None, verdict: Record, what: str) -> str:
    value = f"{verdict['value']:.3g}" if verdict["value"] < 100 else number(verdict["value"])
    value = value if verdict["met"] else f"**{value}**"
    if record is None:
        return value
    size = f"{count(record['num_edges'])} x {record['width']}"
    dtype = "" if record["dtype"] == "float32" else f" {record['dtype']}"
    op = "" if what.split(",")[0] == record["op"] else f"{record['op']} "
    return f"{op}{record['pattern']} {size}{dtype} {value}"


def losses(result: Record, titles: dict[str, str]) -> list[str]:
    """Every measured line that some peer wins, by op, the worst first, and the winner's share."""
    lost: dict[str, list[tuple[float, str]]] = {}
    for record in result["lines"]:
        own = record["times"].get(SUBJECT, {}).get("us")
        if not own:
            continue
        quickest = best(record, [n for n in titles if n != SUBJECT])
        if quickest and quickest[1] < LOSS * own:
            name, share = quickest[0], quickest[1] / own
            told = f"{place(record)} {titles[name]} {share:.2f}"
            lost.setdefault(record["op"], []).append((share, told))
    measured = sum("us" in r["times"].get(SUBJECT, {}) for r in result["lines"])
    if not lost:
        return [f"No peer wins any of the {measured} measured lines."]
    total = sum(map(len, lost.values()))
    head = f"Lost to a peer, {total} of {measured} measured lines (its time as a part of ours):"
    lists = (f"- `{op}`: {'; '.join(told for _, told in sorted(of))}" for op, of in lost.items())
    return [head, "", *lists]


def best(record: Record, names: Sequence[str]) -> tuple[str, float] | None:
    """The quickest accurate peer among `names`."""
    found = [
        (record["times"][n]["us"], n)
        for n in names
        if "us" in record["times"].get(n, {}) and record["times"][n].get("accurate", True)
    ]
    return (min(found)[1], min(found)[0]) if found else None


def peer(found: tuple[str, float] | None, own: float) -> str:
    """A peer's time and, in brackets, times ours."""
    return f"{number(found[1])} ({found[1] / own:,.3g})" if found else "-"


def row(cells: list[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def replace_between_markers(page: str, text: str, begin: str = BEGIN, end: str = END) -> str:
    """The page with `text` between its two markers."""
    if begin not in page or end not in page:
        raise SystemExit(f"the page needs the lines {begin} and {end}")
    before, rest = page.split(begin, 1)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}"


def put(arguments: list[str], make: Callable[[Record], str], begin: str, end: str) -> None:
    """Print the Markdown of the record named first, or put it into the page named second."""
    written = make(json.loads(Path(arguments[0]).read_text()))
    if len(arguments) > 1:
        target = Path(arguments[1])
        target.write_text(replace_between_markers(target.read_text(), written, begin, end))
    else:
        print(written)


if __name__ == "__main__":
    put(sys.argv[1:], markdown, BEGIN, END)
