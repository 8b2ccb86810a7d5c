# SPDX-License-Identifier: Apache-2.0
"""The child process of a column: reads a job, prints progress lines, writes a record."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the job of argv[1] on the npz file of argv[2], write the record to argv[3]."""
    import jax

    from bench.citations.attention import SUBJECT
    from bench.citations.dataset import read_citation_graph
    from bench.citations.training import Job, run_job

    job_path, data_path, record_path = map(Path, sys.argv[1:4])
    fields = json.loads(job_path.read_text())
    job = Job(**{**fields, "seeds": tuple(fields["seeds"])})

    def emit(phase: str, done: int, total: int) -> None:
        print(json.dumps({"phase": phase, "done": done, "total": total}), flush=True)

    record = run_job(job, read_citation_graph(data_path), emit)
    record["xla_flags"] = os.environ.get("XLA_FLAGS", "")
    record["backend"] = jax.default_backend()
    stats = jax.devices()[0].memory_stats() or {}
    record["device_peak_bytes"] = stats.get("peak_bytes_in_use")
    if job.column == SUBJECT:
        import jax_index

        record["kernels"] = jax_index.backends()
    record_path.write_text(json.dumps(record))
