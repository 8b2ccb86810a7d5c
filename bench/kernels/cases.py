# SPDX-License-Identifier: Apache-2.0
"""Performance cases that other projects' users reported, each with the ratio it must keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Record = dict[str, Any]
CASES: dict[str, Callable[[bool], Record]] = {}


def run_case(name: str, on_gpu: bool) -> Record:
    """Run one case; a failure is recorded."""
    try:
        return {"case": name, **CASES[name](on_gpu)}
    except Exception as error:
        return {"case": name, "error": f"{type(error).__name__}: {str(error)[:300]}"}
