# SPDX-License-Identifier: Apache-2.0
"""`python -m bench partition`: what parts of a road network hold and send, and a model of it.

On the host alone: nothing is timed but the building of the parts. The model says how many rows a
part receives in one exchange, c √(n / parts), with c from the measured numbers of parts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.machine import describe_machine
from bench.networks import grid_network

SIDES, LINKS_PER_NODE = (120, 500), 2.983  # the smaller one is the main job's road-42955
PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ORDERS = ("bisect", "contiguous")
FITTED = 8  # from so many parts on a part has all its sides inside of the network
PREDICTED = (1024, 4096, 16384)  # numbers of parts that the model is asked for
NODES_PER_PART = (1_000, 10_000, 100_000, 1_000_000)


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench partition", description=__doc__)
    parser.add_argument("--sides", type=_numbers, default=SIDES, help="sides of square networks")
    parser.add_argument("--parts", type=_numbers, default=PARTS)
    parser.add_argument("--orders", type=lambda text: text.split(","), default=ORDERS)
    parser.add_argument("--json", type=Path, help="write the record here")
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = 160
    result: dict[str, Any] = {
        "benchmark": "partition",
        "machine": describe_machine(),
        "networks": [],
    }
    total = len(options.sides) * len(options.orders) * len(options.parts)
    with Progress(
        TextColumn("{task.description:40s}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console,
    ) as progress:  # fmt: skip
        bar = progress.add_task("networks", total=total)
        for side in options.sides:
            graph = road_graph(side)
            for order in options.orders:
                rows = []
                for num_parts in options.parts:
                    progress.update(bar, description=f"{side} x {side}, {order}, {num_parts} parts")
                    rows.append(measure(graph, num_parts, order))
                    progress.advance(bar)
                result["networks"].append(
                    {
                        "side": side,
                        "nodes": graph.num_receivers,
                        "links": graph.num_edges,
                        "order": order,
                        "parts": rows,
                        "model": fit(rows, graph.num_receivers),
                    }
                )
    for network in result["networks"]:
        console.print(table(network))
    best = next(
        (n for n in result["networks"][::-1] if n["order"] == "bisect" and n["model"]), None
    )
    if best:
        result["predictions"] = predictions(best["model"])
        console.print(prediction_table(result["predictions"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"record: {options.json}")
    return 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({int(part) for part in text.split(",")}))


def road_graph(side: int) -> Any:
    """The generated network of side² nodes, as the main job has it."""
    import jax_index

    n = side * side
    links = 42_955 if side == 120 else round(LINKS_PER_NODE * n)
    network = grid_network("roads", side, side, links, 1, seed=0)
    return jax_index.Graph(network.senders, network.receivers, num_senders=n, num_receivers=n)


def measure(graph: Any, num_parts: int, order: str) -> dict[str, Any]:
    """The report of a partition, what its exchanges in rounds send, and the time to build it."""
    import jax_index

    started = time.perf_counter()
    parts = jax_index.partition(graph, num_parts, node_parts=order)
    seconds = time.perf_counter() - started
    rounds = jax_index.partition(
        graph, num_parts, node_parts=parts.node_parts, exchange="rounds"
    ).report
    in_rounds = {"rounds": rounds["rounds"], "padded": rounds["padded"]}
    return {**parts.report, "in_rounds": in_rounds, "seconds": seconds}


def fit(rows: list[dict[str, Any]], nodes: int) -> dict[str, float]:
    """Find c of halo = c √(n / parts), and of cut links likewise: the mean over numbers of parts.

    With the spread of c, and the largest part's halo over the mean.
    """
    used = [row for row in rows if row["num_parts"] >= FITTED and nodes / row["num_parts"] >= 100]
    if not used:
        return {}
    root = [math.sqrt(nodes / row["num_parts"]) for row in used]
    halo = np.array([row["halo"]["mean"] / r for row, r in zip(used, root, strict=True)])
    cut = np.array(
        [row["cut_edges"] / row["num_parts"] / r for row, r in zip(used, root, strict=True)]
    )
    slots = [
        row["padded"]["forward"] / row["num_parts"] / (row["num_parts"] - 1) / r
        for row, r in zip(used, root, strict=True)
    ]
    rounds = [
        row["in_rounds"]["padded"]["forward"] / row["num_parts"] / r
        for row, r in zip(used, root, strict=True)
    ]
    return {
        "halo": float(halo.mean()),
        "halo_low": float(halo.min()),
        "halo_high": float(halo.max()),
        "cut": float(cut.mean()),
        "slots": float(np.mean(slots)),
        "in_rounds": float(np.mean(rounds)),
        "max_over_mean": max(row["halo"]["max_over_mean"] for row in used),
    }


def predictions(model: dict[str, float]) -> list[dict[str, float]]:
    """Rows that a part receives by the model, and what it sends with padding, on average."""
    return [
        {
            "nodes_per_part": nodes,
            "halo": model["halo"] * math.sqrt(nodes),
            "share": model["halo"] / math.sqrt(nodes),
            "cut": model["cut"] * math.sqrt(nodes),
            "in_rounds": model["in_rounds"] * math.sqrt(nodes),
            **{f"padded_{p}": model["slots"] * math.sqrt(nodes) * (p - 1) for p in PREDICTED},
        }
        for nodes in NODES_PER_PART
    ]


def table(network: dict[str, Any]) -> Table:
    """One row a number of parts."""
    model = network["model"]
    formula = f"; halo = {model['halo']:.2f} √(n / parts)" if model else ""
    out = Table(
        title=f"{network['nodes']:,} nodes, {network['links']:,} links, {network['order']}{formula}"
    )
    columns = ("parts", "nodes max/mean", "links max/mean", "halo mean", "halo max", "most parts",
               "rows forward", "fused backward", "unfused backward", "all_to_all", "in rounds",
               "rounds", "seconds")  # fmt: skip
    for name in columns:
        out.add_column(name, justify="right")
    for row in network["parts"]:
        out.add_row(
            str(row["num_parts"]),
            f"{row['nodes']['max_over_mean']:.2f}",
            f"{row['edges']['max_over_mean']:.2f}",
            f"{row['halo']['mean']:,.0f}",
            f"{row['halo']['max']:,}",
            str(row["neighbours"]),
            f"{row['rows']['forward']:,}",
            f"{row['rows']['exact_fused']:,}",
            f"{row['rows']['exact_unfused']:,}",
            f"{row['padded']['forward']:,}",
            f"{row['in_rounds']['padded']['forward']:,}",
            str(row["in_rounds"]["rounds"]),
            f"{row['seconds']:.2f}",
        )
    return out


def prediction_table(rows: list[dict[str, float]]) -> Table:
    """The model, for one part."""
    out = Table(title="model: rows of one part in an exchange, and with padding")
    names = ("nodes of a part", "halo", "halo / nodes", "cut links", "in rounds")
    for name in (*names, *(f"all_to_all, {p:,} parts" for p in PREDICTED)):
        out.add_column(name, justify="right")
    for row in rows:
        out.add_row(
            f"{row['nodes_per_part']:,}",
            f"{row['halo']:,.0f}",
            f"{row['share']:.3f}",
            f"{row['cut']:,.0f}",
            f"{row['in_rounds']:,.0f}",
            *(f"{row[f'padded_{p}']:,.0f}" for p in PREDICTED),
        )
    return out
