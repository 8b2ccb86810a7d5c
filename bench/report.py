# SPDX-License-Identifier: Apache-2.0
"""The main job's record as a table and a few sentences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.columns import COLUMNS, REFERENCE, SUBJECT
from bench.kernels.table import verdict_text

Record = dict[str, Any]


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
    if result.get("repeats"):
        console.print(_repeats_sentence(result["repeats"], result["device"]["backend"]))
    for verdict in result.get("verdicts", []):
        console.print(f"{verdict['what']}: {verdict_text(verdict)}")
    for note in result["notes"]:
        console.print(f"[dim]{note}[/dim]")


def _table(result: Record) -> Table:
    """One column an implementation, one row a figure."""
    workload, device = result["workload"], result["device"]
    table = Table(
        title=(
            f"HetGAT on {workload['name']}: {workload['nodes']:,} nodes, "
            f"{workload['road_links']:,} road links, {workload['od_links']:,} od links\n"
            f"{result.get('dtype', 'float32')} activations, {device['device']}, "
            f"jax {result['machine']['versions'].get('jax')}"
            f"{', true softmax' if result.get('softmax') == 'segment' else ''}"
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
        *((f"kernel ms/step, B = {b}", _profiled(b, "kernel_ms")) for b in batches),
        *((f"of it index work, B = {b}", _profiled(b, "index_ms")) for b in batches),
        *((f"kernels/step, B = {b}", _profiled(b, "kernels")) for b in batches),
        ("GPU utilisation %", _of(full, "gpu_utilisation")),
        ("temp memory MB", _of(full, "temp_bytes", 1e-6)),
        ("peak MB, device", lambda r: _number(r["device_peak_bytes"], 1e-6)),
        ("peak MB, process", lambda r: _number(r["host_peak_bytes"], 1e-6)),
        ("two runs equal", lambda r: _repeatable(r["batches"][full])),
        *((f"steps, B = {b}", _of(b, "steps")) for b in batches),
    ]
    records = result["columns"].values()
    for title, figure in figures:
        cells = ["error" if "error" in r else figure(r) for r in records]
        if "-" not in cells or not set(cells) <= {"-", "error"}:  # some are a GPU's alone
            table.add_row(title, *cells)
    return table


def _of(batch: str, key: str, scale: float = 1.0) -> Callable[[Record], str]:
    return lambda record: _number(record["batches"][batch].get(key), scale)


def _profiled(batch: str, key: str) -> Callable[[Record], str]:
    return lambda record: _number(record["batches"][batch].get("profile", {}).get(key))


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


def _repeats_sentence(repeats: Record, backend: str) -> str:
    """Whether the fused column repeats its bits."""
    where = f"{COLUMNS[repeats['column']].title}, batch {repeats['batch']}"
    where += ", matmul autotuning pinned" if backend == "gpu" else ""
    same, second = (
        "bit-identical" if repeats[key] else "[red]different[/red]"
        for key in ("same_process", "second_process")
    )
    return (
        f"{where}: {repeats['steps']} steps once more, loss curve and weights: {same} in the same "
        f"process, {second} in a second one."
    )


def _number(value: float | None, scale: float = 1.0) -> str:
    if value is None:
        return "-"
    value *= scale
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"
