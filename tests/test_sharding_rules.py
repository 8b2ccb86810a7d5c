# SPDX-License-Identifier: Apache-2.0
"""README's table of sharding: the collectives of every cell, the errors and the bits."""

from __future__ import annotations

import functools
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import jax_index
from jax_index import _parts, _sharding

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
COLUMNS = ("rows", "edges", "features", "heads", "batch", "plans")


def table():
    """README's table as {(op, pass, column): words}."""
    text = README.read_text()
    lines = re.search(r"^\| op \| pass (\|.*\n)+", text, re.M)[0].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    assert tuple(head[2:]) == COLUMNS
    cells = {}
    for names, which, *words in rows:
        ops = re.findall(r"`(\w+)`", names)
        ops += ["segment_max", "segment_softmax"] if "segment ops" in names else []
        assert ops
        for op in ops:
            for each in ("forward", "gradient") if which == "both" else (which,):
                cells |= {(op, each, c): w for c, w in zip(COLUMNS, words, strict=True)}
    return cells


def expected(words):
    """What a cell's words say: "error", or the collectives by name."""
    if words in ("error", "none"):
        return "error" if words == "error" else {}
    number, name = re.fullmatch(r"(?:(\d) )?(all-gather|all-reduce)s?", words).groups()
    return {name: int(number or 1)}


@functools.cache
def found(kind):
    program = HERE / "sharding_rules_program.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), kind],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["automatic", "explicit"])
def test_every_cell_of_the_table(kind):
    if not README.is_file():
        pytest.skip("needs the source tree")
    measured = found(kind)
    seen = 0
    for (op, which, column), words in table().items():
        key = f"{op}, {column}" if which == "forward" else f"{op}, gradient, {column}"
        if words == "":
            assert key not in measured, key
            continue
        if key not in measured:
            # An explicit mesh is asked for gradients, which contain the forward pass.
            assert kind == "explicit", key
            continue
        seen += 1
        cell = measured[key]
        assert cell["found"] == expected(words), key
        if cell["found"] == "error":
            continue
        assert cell["near"], key
        # Only what devices add to each other has other bits.
        assert cell["same"] == ("all-reduce" not in cell["found"]), key
        # An edge-sharded gather is XLA's.
        assert cell["kernels"] or (op, column) == ("gather", "edges"), key
    assert seen == sum(key.split(", ")[-1] in COLUMNS for key in measured)
    assert seen >= 45


@pytest.mark.parametrize("kind", ["automatic", "explicit"])
def test_edges_that_are_cut_are_refused_with_the_fix(kind):
    measured = found(kind)
    for key, op in (
        ("scatter_add, gradient, edges", "scatter_add"),
        ("segment_max, gradient, edges", "segment_*"),
        ("spmm, gradient, edges", "spmm"),
    ):
        text = measured[key]["text"]
        start = (
            f"jax_index.{op}: the axis of edges must be whole on every device, got an array of "
            "shape (12, 4"
        )
        assert start in text
        assert "whose axis 0 is sharded over 'd'. Cut the graph with jax_index.partition" in text
        assert "allow_reduction=True" in text


@pytest.mark.parametrize("kind", ["automatic", "explicit"])
def test_devices_add_the_sums_of_their_parts_where_that_is_allowed(kind):
    cells = {k: v for k, v in found(kind).items() if k.startswith("allowed")}
    assert len(cells) == 9
    for key, cell in cells.items():
        # Whole numbers: the sums are exact in any order.
        assert all((cell["same"], cell["near"], cell["kernels"])), key
        assert cell["found"] == ({} if "whole" in key else {"all-reduce": 1}), key


@pytest.mark.parametrize("kind", ["automatic", "explicit"])
def test_loops_checkpoints_and_the_reported_case_need_no_collective(kind):
    measured = found(kind)
    for key in (
        "remat and scan, forward",
        "remat and scan, gradient",
        "forward over reverse",
        "static plan",
        "reported, segment_sum",
        "reported, gather",
    ):
        cell = measured[key]
        assert cell["found"] == {}, key
        assert all((cell["same"], cell["near"], cell["kernels"])), key
    for key in ("remat and scan", "reported, segment_sum", "reported, gather"):
        assert measured[f"{key}, spec"], key


def test_one_device_and_a_shard_map_call_the_kernels_as_they_are():
    assert found("automatic")["one device"]
    assert found("automatic")["shard_map"]


def test_allow_reduction_is_a_python_bool():
    plan = jax_index.make_plan([0, 0], 1)
    for call in (jax_index.scatter_add, jax_index.segment_sum, jax_index.gather):
        with pytest.raises(TypeError, match="allow_reduction must be True or False, got 1"):
            call(jnp.ones(1 if call is jax_index.gather else 2), plan, allow_reduction=1)
    assert jax_index.scatter_add(jnp.ones(2), plan, allow_reduction=True).tolist() == [2.0]


def test_this_jax_tells_the_lowering_its_devices():
    assert _sharding.register(jax_index.ops.rows.gather_p)
    assert set(_parts.TABLE) >= {"gather", "scatter_add", "spmm", "sddmm", "pointwise"}


def in_two_processes():
    """Run the program; what each process returned, printed and complained of."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, str(HERE / "sharding_processes_program.py"), address]
    processes = [
        subprocess.Popen(
            [*command, str(k)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for k in range(2)
    ]
    try:
        done = [process.communicate(timeout=180) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *streams) for p, streams in zip(processes, done, strict=True)]


def test_two_processes():
    done = in_two_processes()
    if any("in use" in errors for _, _, errors in done):  # someone took the port meanwhile
        done = in_two_processes()
    for code, out, errors in done:
        assert code == 0, errors
        result = json.loads(out.splitlines()[-1])
        assert result.pop("devices") == [2, 4]
        assert len(result) == 6
        assert {name: right for name, right in result.items() if not right} == {}
