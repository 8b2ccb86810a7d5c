# SPDX-License-Identifier: Apache-2.0
"""Markdown of a record: `python -m bench.fused.readme RECORD.json [PAGE.md]`.

With a page, what stands between its lines `<!-- fused table -->` and `<!-- end of fused table -->`
is replaced; without, the table is printed. Losses come with it, in the same table and in a list.
"""

from __future__ import annotations

import sys
from typing import Any

from bench.fused import targets
from bench.fused.peers import SUBJECT, TITLES
from bench.kernels.readme import best, caption, losses, peer, put, row, target_table, title
from bench.kernels.table import number

Record = dict[str, Any]
BEGIN, END = "<!-- fused table -->", "<!-- end of fused table -->"


def markdown(result: Record) -> str:
    """Every measured line, every target with its figures, then the lines that a peer wins."""
    lines = [r for r in result["lines"] if "us" in r["times"].get(SUBJECT, {})]
    columns = {"XLA": ["xla"], "cuSPARSE": ["cusparse-alg2", "cusparse-alg3"]}
    columns |= {"torch CSR": ["torch-csr"], "torch_geometric": ["pyg"], "SciPy": ["scipy"]}
    columns = {k: v for k, v in columns.items() if any(best(r, v) for r in lines)}
    head = ["op, pattern (nodes, edges, width)", "limit us: once / no reuse", "jax_index us"]
    head += ["temp MB, XLA's", *columns]
    text = [row(head), row(["---", *["---:"] * (len(head) - 1)])]
    for record in lines:
        own, limit = record["times"][SUBJECT], record["limit"]
        temp = [record["times"].get(name, {}).get("temp_bytes") for name in (SUBJECT, "xla")]
        cells = [
            title(record),
            f"{number(limit['once'])} / {number(limit['no_reuse'])}",
            f"**{number(own['us'])}**",
            ", ".join("-" if t is None else megabytes(t) for t in temp),
        ]
        cells += [peer(best(record, names), own["us"]) for names in columns.values()]
        text.append(row(cells))
    targets.judge(result["lines"], result["device"]["backend"])
    text += ["", caption(result), "", *target_table(lines), "", *losses(result, TITLES)]
    return "\n".join(text).rstrip()


def megabytes(size: int) -> str:
    """Of memory; less than a hundredth is none."""
    return "0" if size < 1e4 else number(size / 1e6)


if __name__ == "__main__":
    put(sys.argv[1:], markdown, BEGIN, END)
