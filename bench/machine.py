# SPDX-License-Identifier: Apache-2.0
"""What a figure was measured on: machine, versions, commit. Starts no JAX backend."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "jax_index", "numpy", "scipy", "optax", "jax-cuda13-plugin")
PACKAGES += ("jax-cuda12-plugin",)


def describe_machine() -> dict[str, Any]:
    """Processor, memory, GPU driver, package versions, commit where git has one, and the time."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "nvidia": _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _commit() -> str | None:
    """Commit of the checkout that holds this folder, with a + if files differ from it.

    Where the folder was copied without its repository, JAX_INDEX_COMMIT names the commit.
    """
    if named := os.environ.get("JAX_INDEX_COMMIT"):
        return named
    here = Path(__file__).resolve().parent
    commit = _output("git", "-C", str(here), "rev-parse", "--short=12", "HEAD")
    if commit and _output("git", "-C", str(here), "status", "--porcelain", "--untracked-files=no"):
        commit += "+"
    return commit


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
