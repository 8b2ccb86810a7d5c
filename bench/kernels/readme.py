# SPDX-License-Identifier: Apache-2.0
"""Markdown of a record: `python -m bench.kernels.readme RECORD.json [PAGE.md]`.

With a page, what stands between its lines `<!-- ops table -->` and `<!-- end of ops table -->` is
replaced; without, the table is printed. Losses come with it, in the same table and in a list.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.kernels.peers import SUBJECT, TITLES
from bench.kernels.table import count, number

Record = dict[str, Any]
BEGIN, END = "<!-- ops table -->", "<!-- end of ops table -->"
GROUPS = ("wide", "16", "scalar", "dtypes", "small")
LOSS = 0.97  # a peer that takes less than so much of our time wins; below is noise


def markdown(result: Record) -> str:
    """The headline lines as one table, then every line that a peer wins."""
    lines = [
        r for r in result["lines"] if r["group"] in GROUPS and "us" in r["times"].get(SUBJECT, {})
    ]
    torch = [n for n in TITLES if n.startswith("torch")]
    columns = {"XLA": ["xla", "xla-sorted"], "XLA deterministic": ["xla-deterministic"]}
    columns |= {"torch": torch, "NumPy / SciPy": ["numpy", "scipy"]}
    columns = {k: v for k, v in columns.items() if any(best(r, v) for r in lines)}
    head = ["op, pattern (rows, edges, width)", "limit us", "jax_index us", "of limit", *columns]
    text = [row(head), row(["---", *["---:"] * (len(head) - 1)])]
    for record in lines:
        own = record["times"][SUBJECT]["us"]
        once = record["limit"]["once"]
        cells = [title(record), number(once), f"**{number(own)}**", f"{once / own:.0%}"]
        cells += [peer(best(record, names), own) for names in columns.values()]
        text.append(row(cells))
    text += ["", caption(result), "", *losses(result, TITLES)]
    return "\n".join(text)


def caption(result: Record) -> str:
    """What the figures were measured on."""
    machine, ceilings = result["machine"], result["ceilings"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items() if k != "jax_index")
    device = result["device"]["device"]
    device = f"{machine['cpu']}, {machine['cores']} cores" if device == "cpu" else device
    return (
        f"{device}; {versions}; commit {machine.get('commit')}; {machine['time'][:10]}. Limit: "
        f"every row once at the bandwidths of the same run (read {ceilings['read'] / 1e12:.3g}, "
        f"write {ceilings['write'] / 1e12:.3g} TB/s). In brackets: times ours; the best of a "
        "library's forms is shown. float32 unless said."
    )


def losses(result: Record, titles: dict[str, str]) -> list[str]:
    """A sentence on every measured line that some peer wins."""
    lost = []
    for record in result["lines"]:
        own = record["times"].get(SUBJECT, {}).get("us")
        if not own:
            continue
        quickest = best(record, [n for n in titles if n != SUBJECT])
        if quickest and quickest[1] < LOSS * own:
            name, us = quickest
            lost.append(f"- {title(record)}: {titles[name]} takes {us / own:.2f} of our time")
    measured = sum("us" in r["times"].get(SUBJECT, {}) for r in result["lines"])
    if not lost:
        return [f"No peer wins any of the {measured} measured lines."]
    return [f"Lost to a peer, {len(lost)} of {measured} measured lines:", "", *lost]


def best(record: Record, names: list[str]) -> tuple[str, float] | None:
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


def title(record: Record) -> str:
    """Op, pattern, sizes and dtype."""
    dtype = "" if record["dtype"] == "float32" else f" {record['dtype']}"
    size = f"{count(record['num_rows'])}, {count(record['num_edges'])}, {record['width']}"
    return f"`{record['op']}` {record['pattern']} ({size}){dtype}"


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
