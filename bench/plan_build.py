# SPDX-License-Identifier: Apache-2.0
"""`python -m bench plan`: time of building a plan, and of looking one up in the cache of ids."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.machine import describe_machine

SIZES = (10**3, 10**4, 10**5, 10**6)
GPU_SIZES = (8 * 2**20,)  # more memory and cores stand beside a GPU
PATTERNS = ("uniform", "local", "hub", "sorted")


def main(arguments: Sequence[str]) -> int:
    """Parse, run, print, write."""
    import jax

    from bench.kernels.table import number
    from bench.kernels.targets import EAGER_US, PLAN_NS

    options = _parser().parse_args(arguments)
    on_gpu = jax.default_backend() == "gpu"
    sizes = options.sizes or (*SIZES, *(GPU_SIZES if on_gpu else ()))
    console = Console()
    if not console.is_terminal:
        console.width = 160
    result: dict[str, Any] = {
        "benchmark": "plan",
        "device": {"backend": jax.default_backend(), "device": jax.devices()[0].device_kind},
        "machine": describe_machine(),
        "builds": [],
        "lookups": [],
    }
    with Progress(
        TextColumn("{task.description:40s}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), console=console,
    ) as progress:  # fmt: skip
        bar = progress.add_task("plans", total=len(sizes) * len(options.patterns) + len(sizes))
        for edges in sizes:
            for pattern in options.patterns:
                progress.update(bar, description=f"build {pattern} {edges:,}")
                result["builds"].append(_builds(pattern, edges, on_gpu, options.seconds))
                progress.advance(bar)
            progress.update(bar, description=f"look up {edges:,}")
            result["lookups"].append(_lookups(edges, options.seconds))
            progress.advance(bar)
    large = [b for b in result["builds"] if b["num_edges"] >= 10**6 and "ns_core" in b]
    worst = max((b["ns_core"] for b in large), default=None)
    eager = min((b["plan_s"] * 1e6 for b in result["lookups"] if "plan_s" in b), default=None)
    result["verdicts"] = {
        "worst_ns_per_edge_and_core": worst,
        "bound_ns": PLAN_NS,
        "eager_us": eager,
        "bound_us": EAGER_US,
    }
    console.print(_build_table(result["builds"], number))
    console.print(_lookup_table(result["lookups"], number))
    if eager is not None:
        verdict = "[green]met[/green]" if eager <= EAGER_US else "[red]missed[/red]"
        console.print(f"target: an eager call within {EAGER_US:g} us; {eager:.3g}: {verdict}.")
    if worst is not None:
        verdict = "[green]met[/green]" if worst <= PLAN_NS else "[red]missed[/red]"
        console.print(
            f"target: at most {PLAN_NS:g} ns per edge and core for a million 32-bit ids or more; "
            f"worst {worst:.3g}: {verdict}."
        )
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"record: {options.json}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench plan", description=__doc__)
    parser.add_argument("--sizes", type=_numbers, help="edges, as 1000,1000000; rows: an eighth")
    parser.add_argument("--patterns", type=lambda text: text.split(","), default=list(PATTERNS))
    parser.add_argument("--seconds", type=float, default=0.3, help="for each figure")
    parser.add_argument("--json", type=Path, help="write the record here")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def _median(call: Callable[[], Any], seconds: float) -> float:
    """Median seconds of a blocking call, after one that is not counted."""
    call()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - started < seconds and len(times) < 200):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _builds(pattern: str, edges: int, on_gpu: bool, seconds: float) -> dict[str, Any]:
    """Seconds of every way to sort the same ids."""
    import jax
    import jax.numpy as jnp

    import jax_index
    from bench.kernels.patterns import generate

    rows = max(edges // 8, 1)
    topology = generate(pattern, rows, edges)
    ids, wide = topology.ids, topology.ids.astype(np.int64)
    cores = len(os.sched_getaffinity(0))
    cpu = jax.devices("cpu")[0]

    def built(values: Any) -> None:
        jax_index.make_plan(values, rows).perm.block_until_ready()

    record: dict[str, Any] = {"pattern": pattern, "num_rows": rows, "num_edges": edges}
    try:
        with jax.default_device(cpu):
            record["host_s"] = _median(lambda: built(ids), seconds)
            record["host_int64_s"] = _median(lambda: built(wide), seconds)
        if on_gpu:
            record["with_upload_s"] = _median(lambda: built(ids), seconds)
        record["ns"] = record["host_s"] / edges * 1e9
        record["ns_core"] = record["ns"] * cores
        record["numpy_argsort_s"] = _median(lambda: np.argsort(ids, kind="stable"), seconds)
        device_ids = jnp.asarray(ids)
        argsort = jax.jit(lambda ids: jnp.argsort(ids, stable=True))
        record["device_argsort_s"] = _median(
            lambda: argsort(device_ids).block_until_ready(), seconds
        )
        traced = jax.jit(lambda ids: jax_index.make_plan(ids, rows, mode="drop"))
        record["traced_plan_s"] = _median(
            lambda: traced(device_ids).perm.block_until_ready(), seconds
        )
        if on_gpu and (radix := _radix_sort(ids)):
            record["torch_sort_s"] = _median(radix, seconds)
    except Exception as error:
        record["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    return record


def _radix_sort(ids: np.ndarray) -> Callable[[], None] | None:
    """A stable radix sort of the ids with their positions by torch (CUB), where torch is there."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    values = torch.from_numpy(ids.astype(np.int32)).cuda()

    def run() -> None:
        torch.sort(values, stable=True)
        torch.cuda.synchronize()

    return run


def _lookups(edges: int, seconds: float) -> dict[str, Any]:
    """Seconds of an eager gather with a plan, and with raw ids that the cache knows."""
    import jax.numpy as jnp

    import jax_index
    from bench.kernels.patterns import generate

    rows = max(edges // 8, 1)
    ids = generate("uniform", rows, edges).ids
    x, device_ids = jnp.ones(rows), jnp.asarray(ids)
    plan = jax_index.make_plan(ids, rows)
    record: dict[str, Any] = {"num_edges": edges}
    for name, index in (("plan_s", plan), ("jax_ids_s", device_ids), ("numpy_ids_s", ids)):
        try:
            record[name] = _median(
                lambda index=index: jax_index.gather(x, index).block_until_ready(), seconds
            )
        except Exception as error:
            record["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    return record


def _build_table(builds: list[dict[str, Any]], number: Callable[[float], str]) -> Table:
    table = Table(title="building a plan, ms", title_justify="left")
    for title in (
        "pattern, edges", "host", "ns per edge", "ns per edge\nand core", "int64 ids",
        "with\nupload", "NumPy\nargsort", "device\nargsort", "torch\nradix sort",
        "traced plan\non the device",
    ):  # fmt: skip
        table.add_column(title, justify="right")
    keys = ("host_int64_s", "with_upload_s", "numpy_argsort_s", "device_argsort_s")
    keys += ("torch_sort_s", "traced_plan_s")
    for b in builds:
        rest = [number(b[k] * 1e3) if k in b else "-" for k in keys]
        title = f"{b['pattern']} {b['num_edges']:,}"
        if "ns" not in b:
            table.add_row(title, "[red]failed[/red]", b.get("error", ""))
            continue
        table.add_row(
            title, number(b["host_s"] * 1e3), number(b["ns"]), number(b["ns_core"]), *rest
        )
    return table


def _lookup_table(lookups: list[dict[str, Any]], number: Callable[[float], str]) -> Table:
    table = Table(title="an eager gather of one number a row, us", title_justify="left")
    for title in ("edges", "with a plan", "known JAX ids", "known NumPy ids (hashed)"):
        table.add_column(title, justify="right")
    for b in lookups:
        cells = [number(b[k] * 1e6) if k in b else "failed" for k in
                 ("plan_s", "jax_ids_s", "numpy_ids_s")]  # fmt: skip
        table.add_row(f"{b['num_edges']:,}", *cells)
    return table
