# SPDX-License-Identifier: Apache-2.0
"""Gradients over explicit meshes, on four devices of a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_cotangents_are_sharded_as_their_operands_are():
    program = Path(__file__).parent / "explicit_program.py"
    command = [sys.executable, "-W", "error", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all gradients are sharded" in done.stdout
