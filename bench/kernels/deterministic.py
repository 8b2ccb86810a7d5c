# SPDX-License-Identifier: Apache-2.0
"""XLA with --xla_gpu_deterministic_ops=true: a process of its own, since flags are read once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from bench.columns import DETERMINISTIC_FLAG

Record = dict[str, Any]
SECONDS = 45.0  # for all lines; the flag can cost a thousand times
GROUPS = ("wide", "16", "scalar", "small", "custom")


def add_times(records: list[Record], seed: int) -> list[str]:
    """Add the deterministic peer to the float32 row sums among `records`; return notes."""
    from bench.kernels.peers import DETERMINISTIC

    chosen = [
        r for r in records
        if "limit" in r and r["op"] == "scatter_add" and r["dtype"] == "float32"
        and r["group"] in GROUPS and ":" not in r["pattern"]
    ]  # fmt: skip
    job = [
        {k: r[k] for k in ("op", "pattern", "width", "dtype", "group")}
        | {"num_rows": r["num_rows"], "num_edges": r["num_edges"]}
        for r in chosen
    ]
    environment = dict(os.environ)
    environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {DETERMINISTIC_FLAG}".strip()
    process = subprocess.Popen(
        _command(), env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    watchdog = threading.Timer(SECONDS, process.kill)
    watchdog.start()
    try:
        output, errors = process.communicate(json.dumps({"seed": seed, "lines": job}))
    finally:
        watchdog.cancel()
    answers = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    for record, entry in zip(chosen, answers, strict=False):
        if "us" in entry:
            entry["share"] = record["limit_us"] / entry["us"]
        record["times"][DETERMINISTIC] = entry
    for record in chosen[len(answers) :]:
        record["times"][DETERMINISTIC] = {"skipped": f"not reached in {SECONDS:.0f} s"}
    if len(answers) < len(chosen):
        last = (errors.strip().splitlines() or [""])[-1][:300]
        return [
            f"XLA deterministic: {len(answers)} of {len(chosen)} lines in {SECONDS:.0f} s. {last}"
        ]
    return []


def _command() -> list[str]:
    root = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.append({root!r}); "
    return [
        sys.executable,
        "-P",
        "-c",
        code + "from bench.kernels.deterministic import child; child()",
    ]


def child() -> None:
    """Measure the lines of the job on stdin with XLA alone; one JSON line each on stdout."""
    from bench.kernels import patterns
    from bench.kernels.line import Inputs, Line
    from bench.kernels.peers_jax import PEERS

    xla = next(peer for peer in PEERS if peer.name == "xla")
    job = json.loads(sys.stdin.read())
    for fields in job["lines"]:
        line = Line(**fields)
        try:
            topology = patterns.generate(line.pattern, line.num_rows, line.num_edges, job["seed"])
            prepared = xla.prepare(Inputs(line, topology, job["seed"], 1), "scatter_add")
            prepared.result = None
            entry = prepared.time(0.1).record()
        except Exception as error:
            entry = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(entry), flush=True)
