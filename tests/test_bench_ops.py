# SPDX-License-Identifier: Apache-2.0
"""`bench ops` and `bench plan`: patterns, limits, targets, and the smallest runs end to end."""

import json
import math

import numpy as np
import pytest

pytest.importorskip("rich", reason="the benchmarks need rich")
pytest.importorskip("matplotlib", reason="the charts need matplotlib")

import jax
import jax.numpy as jnp

from bench import plan_build
from bench.kernels import check, cli, grid, patterns, targets
from bench.kernels.limits import Ceilings, limit_of
from bench.kernels.line import Inputs, Line
from bench.kernels.measure import Bench
from bench.kernels.peer import Peer
from bench.kernels.peers import PEERS, SUBJECT
from bench.kernels.timing import graph_replay
from bench.kernels.topology import Topology, edge_sector_bytes, sector_bytes

UNIT = Ceilings(read=1e12, write=1e12, copy=1e12, cache={4 * 2**20: 4e12, 32 * 2**20: 2e12})


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it():
    """The benchmark runs under JAX's defaults, not under this suite's strict ones."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("name", patterns.PATTERNS)
def test_ids_are_in_range_and_depend_on_the_seed_alone(name):
    first, again = (patterns.generate(name, 1000, 8000, seed=3) for _ in range(2))
    assert first.ids.dtype == np.int32
    assert first.num_edges == 8000
    assert first.ids.min() >= 0
    assert first.ids.max() < first.num_rows
    np.testing.assert_array_equal(first.ids, again.ids)


def test_patterns_have_the_stated_properties():
    made = {name: patterns.generate(name, 1000, 8000) for name in patterns.PATTERNS}
    diagonal = np.arange(8000) * 1000 // 8000
    assert np.abs(made["local"].ids - diagonal).max() <= patterns.BAND
    assert np.abs(made["local"].ids - diagonal).max() > patterns.BAND // 2
    for name in ("hub", "hub-sorted"):
        assert made[name].degrees[0] == pytest.approx(0.11 * 8000, rel=0.1)
        assert made[name].longest_row == made[name].degrees[0]
    assert made["half"].degrees[0] == pytest.approx(4000, rel=0.05)
    assert {name for name, t in made.items() if t.is_sorted} == {
        "sorted", "hub-sorted", "one-row", "all-but-one-empty", "few-64-sorted", "few-1024-sorted",
    }  # fmt: skip
    assert made["one-row"].num_rows == 1
    assert made["all-but-one-empty"].rows_with_edges == 1
    assert (made["one-edge-per-row"].degrees == 1).all()
    assert made["few-64"].num_rows == 64


def test_power_law_is_one():
    shares = patterns.hub_shares(10_000)
    assert shares[0] == pytest.approx(patterns.HUB_SHARE, rel=1e-6)
    slope = np.diff(np.log(shares)) / np.diff(np.log(np.arange(1, 10_001)))
    np.testing.assert_allclose(slope, slope[0], rtol=1e-6)


def test_sectors_of_narrow_rows():
    # Rows of 12 bytes: at 0, 12, 24 (crosses 32), 36, ...
    assert sector_bytes(4, 12).tolist() == [32, 32, 64, 32]
    for width in (4, 8, 12, 20, 32, 132, 264):
        assert edge_sector_bytes(1000, width) == sector_bytes(1000, width).sum()
    t = Topology("t", np.array([0, 0, 2], np.int32), 4)
    assert t.bytes_by_edge(12) == 32 + 32 + 64
    assert t.bytes_of_rows(12) == 48  # never more than the whole array
    assert t.bytes_by_edge(256) == 3 * 256
    assert t.bytes_of_rows(256) == 2 * 256


def test_limits_by_hand():
    ids = np.array([3, 0, 3, 1, 3], np.int32)
    t = Topology("t", ids, 4)
    row = 64 * 4
    gather = limit_of("gather", t, 64, 4, UNIT, on_gpu=False)
    assert gather.once == pytest.approx((3 * row + 5 * 4 + 5 * row) * 1e-6)
    assert gather.no_reuse == pytest.approx((5 * row + 5 * 4 + 5 * row) * 1e-6)
    assert gather.cache == pytest.approx(5 * row / 4 * 1e-6)
    assert gather.judged_by == "once"
    scatter = limit_of("scatter", t, 64, 4, UNIT, on_gpu=False)
    assert scatter.once == pytest.approx((5 * row + 5 * 4 + 5 * 4 + 4 * row) * 1e-6)
    assert scatter.bytes_once == 9 * row + 40
    narrow = limit_of("scatter", t, 1, 4, UNIT, on_gpu=False)
    assert narrow.no_reuse == pytest.approx((5 * 32 + 40 + 16) * 1e-6)
    in_order = limit_of("scatter", Topology("s", np.sort(ids), 4), 1, 4, UNIT, on_gpu=False)
    assert in_order.no_reuse == in_order.once == pytest.approx((5 * 4 + 20 + 16) * 1e-6)
    assert limit_of("gather", t, 1, 4, UNIT, on_gpu=False).judged_by == "no_reuse"
    assert limit_of("gather", t, 64, 4, UNIT, on_gpu=True).judged_by == "cache"


def test_limit_of_the_published_line():
    """512k rows, 4M edges, rows of 64 float32 at 4.57 and 4.40 TB/s: 277, 483 and 270 us."""
    card = Ceilings(4.57e12, 4.40e12, 4.28e12, {4 * 2**20: 9.5e12})
    t = patterns.generate("uniform", 512 * 2**10, 4 * 2**20)
    gather = limit_of("gather", t, 64, 4, card, on_gpu=True)
    assert (round(gather.once), round(gather.no_reuse)) == (277, 483)
    assert round(limit_of("scatter", t, 64, 4, card, on_gpu=True).once) == 270


def test_tables_have_their_own_cache_bandwidth():
    assert UNIT.cache_for(10) == 4e12
    assert UNIT.cache_for(5 * 2**20) == UNIT.cache_for(10**9) == 2e12


@pytest.mark.parametrize("op", grid.OPS)
@pytest.mark.parametrize("width", [1, 3])
def test_references_find_one_wrong_element(op, width):
    t = patterns.generate("uniform", 50, 400)
    line = Line(op, "uniform", 50, 400, width)
    inputs = Inputs(line, t, 0, 1)
    reference = check.Reference(line.moves, inputs.operands[0], inputs.ids, 50)
    x = np.asarray(inputs.operands[0])
    if line.moves == "gather":
        right = x[t.ids]
    else:
        right = np.zeros((50, *x.shape[1:]), np.float32)
        np.add.at(right, t.ids, x)
    assert right.shape == inputs.result_shape
    assert reference.error(jnp.asarray(right)) <= check.tolerance(line.moves, "float32")
    for wrong in (right[3] + 0.01, np.nan):
        broken = right.copy()
        broken[3] = wrong
        assert reference.error(jnp.asarray(broken)) > check.tolerance(line.moves, "float32")


def test_targets_speak_of_the_right_lines():
    line = {
        "op": "scatter_add", "pattern": "sorted", "group": "scalar", "dtype": "float32", "width": 1,
        "row_bytes": 4, "num_rows": 2**20, "num_edges": 2**23, "sorted": True, "limit_us": 9.5,
        "limit": {"once": 9.5, "no_reuse": 9.5, "bytes_once": 4e7, "working_set": 4e7},
        "times": {SUBJECT: {"us": 13.0}, "xla": {"us": 231.0}},
    }  # fmt: skip
    unsorted = {**line, "sorted": False, "times": {SUBJECT: {"us": 80.0}}}
    targets.judge([line, unsorted], "gpu", 1e12)
    assert [(v["bound"], v["met"]) for v in line["verdicts"]] == [(14.0, True)]
    assert [(v["bound"], v["met"]) for v in unsorted["verdicts"]] == [(70.0, False)]
    targets.judge([line], "cpu", 1e12)
    assert [(v["figure"], v["met"]) for v in line["verdicts"]] == [("xla", True)]


def test_grids_have_no_line_twice_and_every_item():
    for on_gpu in (False, True):
        for full in (False, True):
            lines = grid.default_lines(on_gpu, full, ["graph:g"])
            assert len(set(lines)) == len(lines)
        assert {line.width for line in lines} >= set(grid.WIDTHS)
        assert {line.dtype for line in lines} == set(grid.DTYPES)
        assert {line.op for line in lines} == set(grid.OPS)
        assert {line.pattern for line in lines} == {*patterns.PATTERNS, "graph:g"}


def test_one_failing_peer_does_not_end_the_line():
    def broken(inputs, name):
        raise RuntimeError("no such kernel")

    bench = Bench(
        UNIT, [Peer("broken", "broken", broken), PEERS["xla"]], {}, on_gpu=False, seconds=0.01
    )
    record = bench.run(Line("gather", "uniform", 10, 40, 4))
    assert record["times"]["broken"] == {"error": "RuntimeError: no such kernel"}
    assert record["times"]["xla"]["accurate"]
    assert "error" in bench.run(Line("gather", "nowhere", 10, 40, 4))


def test_a_chain_keeps_every_call():
    jax_index = pytest.importorskip("jax_index", reason="jax_index is not installed")
    plan = jax_index.make_plan(np.arange(40) % 10, 10)
    with jax.default_device(jax.devices("cpu")[0]):
        found = graph_replay(jax_index.scatter_add, jnp.ones((40, 4)), plan, 0.02, length=5)
    assert found["with_chain_us"] > 0


def test_smallest_run_writes_a_record_and_charts(tmp_path, capsys):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    record = tmp_path / "ops.json"
    arguments = ["--sizes", "64:512", "--widths", "1,16", "--patterns", "sorted"]
    arguments += ["--ops", ",".join(grid.OPS), "--seconds", "0.01", "--no-cases", "--no-real"]
    status = cli.main([*arguments, "--json", str(record), "--charts", str(tmp_path)])
    assert status == 0
    result = json.loads(record.read_text())
    assert len(result["lines"]) == 2 * len(grid.OPS)
    for line in result["lines"]:
        own = line["times"][SUBJECT]
        assert own["accurate"]
        assert own["us"] > 0
        assert math.isclose(own["share"], line["limit_us"] / own["us"])
        skipped = {name for name, entry in line["times"].items() if "us" not in entry}
        assert all("skipped" in line["times"][name] for name in skipped)
        assert SUBJECT not in skipped
        assert "xla" not in skipped
    assert result["machine"]["versions"]["jax"] == jax.__version__
    assert result["ceilings"]["read"] > 1e8
    assert len(list(tmp_path.glob("*.svg"))) == 2
    assert "targets met" in capsys.readouterr().out


def test_smallest_plan_run(tmp_path):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    record = tmp_path / "plan.json"
    arguments = ["--sizes", "1000", "--patterns", "uniform", "--seconds", "0.02"]
    assert plan_build.main([*arguments, "--json", str(record)]) == 0
    result = json.loads(record.read_text())
    assert result["builds"][0]["host_s"] > 0
    assert result["lookups"][0]["numpy_ids_s"] > 0
