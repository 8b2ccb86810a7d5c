# SPDX-License-Identifier: Apache-2.0
"""The main job's record as a table and a few sentences, and its comparison of bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.columns import COLUMNS, REFERENCE, SUBJECT

Record = dict[str, Any]


def compare_bits(reference: Record, subject: Record, batch: int) -> Record:
    """Whether losses, gradients and weights of two records are equal to the bit.

    Losses of the steps that both took, gradients of the first ones, and, where both took equally
    many steps, the weights after the last.
    """
    a, b = (record["batches"][str(batch)] for record in (reference, subject))
    steps = min(a["steps"], b["steps"])
    pairs = list(zip(a["loss_bits"][:steps], b["loss_bits"][:steps], strict=True))
    differing = [step for step, (x, y) in enumerate(pairs) if x != y]
    digests = min(len(a["gradient_digests"]), len(b["gradient_digests"]))
    return {
        "batch": batch,
        "steps": steps,
        "loss_equal": not differing,
        "first_differing_step": differing[0] if differing else None,
        "largest_loss_difference": max(
            abs(x - y) for x, y in zip(a["losses"][:steps], b["losses"][:steps], strict=True)
        ),
        "gradient_steps": digests,
        "gradients_equal": a["gradient_digests"][:digests] == b["gradient_digests"][:digests],
        "params_equal": (
            a["params_digest"] == b["params_digest"] if a["steps"] == b["steps"] else None
        ),
    }


def learning(record: Record, batch: int) -> Record:
    """First loss, mean of the last steps (one epoch or a quarter of the run), and their ratio."""
    losses = record["batches"][str(batch)]["losses"]
    last = losses[-max(1, min(6, len(losses) // 4)) :]
    mean = sum(last) / len(last)
    return {"first": losses[0], "last": mean, "fall": 1.0 - mean / losses[0]}


def print_report(console: Console, result: Record) -> None:
    """Everything a reader wants to see of one run."""
    console.print(_table(result))
    workload, learn = result["workload"], result["learning"]
    batch = result["learn_batch"]
    if learn:
        console.print(
            f"{COLUMNS[learn['column']].title}, batch {batch}, {learn['steps']} steps: loss "
            f"{learn['first']:.3f} -> {learn['last']:.3f} (falls by {learn['fall']:.0%})."
        )
        for key, words in (
            ("held_out", f"{workload['held_out']} held-out scenarios"),
            ("published", "published flows"),
        ):
            if learn.get(key):
                e = learn[key]
                console.print(
                    f"{words}: MAE of flow/capacity {e['mae_ratio']:.4f} "
                    f"(mean {e['mean_ratio']:.4f}), correlation of flows "
                    f"{e['flow_correlation']:.4f}."
                )
    for bits in result["bits"]:
        console.print(_bits_sentence(bits, result["device"]["backend"]))
    for note in result["notes"]:
        console.print(f"[dim]{note}[/dim]")


def _table(result: Record) -> Table:
    """One column an implementation, one row a figure."""
    workload, device = result["workload"], result["device"]
    table = Table(
        title=(
            f"HetGAT on {workload['name']}: {workload['nodes']:,} nodes, "
            f"{workload['road_links']:,} road links, {workload['od_links']:,} od links\n"
            f"{device['device']}, jax {result['machine']['versions'].get('jax')}"
        )
    )
    table.add_column("", no_wrap=True)
    for name in result["columns"]:
        table.add_column(COLUMNS[name].title, justify="right")
    full = str(result["learn_batch"])
    batches = [str(batch) for batch in result["batches"]]
    figures: list[tuple[str, Callable[[Record], str]]] = [
        *((f"train ms/step, B = {b}", _of(b, "train_ms")) for b in batches),
        *((f"infer ms/scenario, B = {b}", _of(b, "infer_p50_ms_per_scenario")) for b in batches),
        ("GPU utilisation %", _of(full, "gpu_utilisation")),
        ("temp memory MB", _of(full, "temp_bytes", 1e-6)),
        ("peak MB, device", lambda r: _number(r["device_peak_bytes"], 1e-6)),
        ("peak MB, process", lambda r: _number(r["host_peak_bytes"], 1e-6)),
        ("two runs equal", lambda r: _repeatable(r["batches"][full])),
        *((f"steps, B = {b}", _of(b, "steps")) for b in batches),
    ]
    records = result["columns"].values()
    for title, figure in figures:
        table.add_row(title, *("error" if "error" in r else figure(r) for r in records))
    return table


def _of(batch: str, key: str, scale: float = 1.0) -> Callable[[Record], str]:
    return lambda record: _number(record["batches"][batch].get(key), scale)


def _repeatable(run: Record) -> str:
    return {True: "yes", False: "no", None: "-"}[run.get("repeatable")]


def _bits_sentence(bits: Record, backend: str) -> str:
    where = f"{COLUMNS[SUBJECT].title} against {COLUMNS[REFERENCE].title} on {backend}, "
    where += f"batch {bits['batch']}"
    if backend == "gpu":
        where += ", matmul autotuning pinned"
    losses = (
        "bit-identical"
        if bits["loss_equal"]
        else (
            f"[red]differs from step {bits['first_differing_step']} on, by up to "
            f"{bits['largest_loss_difference']:.3g}[/red]"
        )
    )
    gradients = "bit-identical" if bits["gradients_equal"] else "[red]different[/red]"
    text = f"{where}: loss of {bits['steps']} steps {losses}; "
    text += f"gradients of {bits['gradient_steps']} steps {gradients}"
    if bits["params_equal"] is not None:
        text += f"; weights after them {'bit-identical' if bits['params_equal'] else 'different'}"
    return text + "."


def _number(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return "-"
    value *= scale
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"
