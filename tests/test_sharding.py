# SPDX-License-Identifier: Apache-2.0
"""shard_map with eight devices, in a process that has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_shard_map_equals_the_unsharded_program():
    program = Path(__file__).with_name("sharding_program.py")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 56
    assert {name: right for name, right in found.items() if not right} == {}
