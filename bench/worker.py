# SPDX-License-Identifier: Apache-2.0
"""The child process of a column: reads a job, prints progress lines, writes a record.

XLA reads its flags once per process and device memory peaks are per process, so every column has
its own. `python -c "from bench.worker import main; main()" job.json problem.npz record.json`
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the job of argv[1] on the problem of argv[2], write the record to argv[3]."""
    import jax

    from bench.scenarios import Problem
    from bench.train import Job, run_job

    job_path, problem_path, record_path = map(Path, sys.argv[1:4])
    fields = json.loads(job_path.read_text())
    for name in ("steps", "seconds"):
        fields[name] = {int(batch): value for batch, value in fields[name].items()}
    job = Job(**{**fields, "batches": tuple(fields["batches"])})

    def emit(phase: str, done: int, total: int) -> None:
        print(json.dumps({"phase": phase, "done": done, "total": total}), flush=True)

    record = run_job(job, Problem.load(problem_path), emit)
    record["xla_flags"] = os.environ.get("XLA_FLAGS", "")
    record["backend"] = jax.default_backend()
    if job.column.startswith("jax_index"):
        import jax_index

        record["kernels"] = jax_index.backends()
    record_path.write_text(json.dumps(record))


def probe() -> None:
    """Print what JAX finds on this machine, as one JSON line."""
    import jax

    device = jax.devices()[0]
    print(
        json.dumps(
            {
                "backend": jax.default_backend(),
                "device": device.device_kind,
                "device_count": jax.device_count(),
                "device_memory_bytes": (device.memory_stats() or {}).get("bytes_limit"),
            }
        )
    )
