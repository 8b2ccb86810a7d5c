# SPDX-License-Identifier: Apache-2.0
"""Start a column's process, follow its progress, and collect its record."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.train import Job

PINNED_FLAGS = ("--xla_gpu_autotune_level=0",)  # else each process may pick its own matmul


class ColumnError(RuntimeError):
    """A column's process ended without a record; the text is the end of what it wrote."""


def probe() -> dict[str, Any]:
    """Backend and device that columns will run on, found in a process of its own."""
    done = subprocess.run(
        _command("bench.worker", "probe"), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ColumnError(done.stderr.strip()[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def run_column(
    job: Job,
    problem: Path,
    folder: Path,
    flags: Sequence[str],
    progress: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """Run `job` on the saved problem with `flags` added to XLA_FLAGS."""
    stem = folder / f"{job.column}-{len(list(folder.glob('*.job')))}"
    return run_child("bench.worker", dataclasses.asdict(job), problem, stem, flags, progress)


def run_child(
    worker: str,
    job: dict[str, Any],
    problem: Path,
    stem: Path,
    flags: Sequence[str],
    progress: Callable[[str, int, int], None],
) -> dict[str, Any]:
    """The record that `main` of a worker module makes of a job and a file, in a new process.

    Its files lie at `stem` with suffixes of their own; `flags` are added to XLA_FLAGS.
    """
    job_path, record_path, errors = (stem.with_suffix(s) for s in (".job", ".json", ".stderr"))
    job_path.write_text(json.dumps(job))
    environment = dict(os.environ)
    environment["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()
    command = _command(worker, "main", str(job_path), str(problem), str(record_path))
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    event = json.loads(line)
                    progress(event["phase"], event["done"], event["total"])
        except BaseException:
            process.kill()
            raise
    if process.returncode or not record_path.exists():
        tail = errors.read_text().strip()[-2000:]
        raise ColumnError(tail or f"its process ended with status {process.returncode}.")
    return json.loads(record_path.read_text())


def _command(worker: str, function: str, *arguments: str) -> list[str]:
    """A Python that finds this folder last: an installed jax_index goes before a source tree."""
    root = str(Path(__file__).resolve().parents[1])
    code = f"import sys; sys.path.append({root!r}); from {worker} import {function} as run; "
    return [sys.executable, "-P", "-c", code + "run()", *arguments]
