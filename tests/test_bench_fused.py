# SPDX-License-Identifier: Apache-2.0
"""`bench fused`: graphs, limits, references, targets, contention, and the smallest run."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rich", reason="the benchmarks need rich")
pytest.importorskip("matplotlib", reason="the charts need matplotlib")

import jax
import jax.numpy as jnp

from bench.fused import cli, contention, grid, inputs, limits, readme, targets
from bench.fused.measure import FusedBench
from bench.fused.ops import GRADIENTS, HEADS, OPS
from bench.fused.peers import PEERS, SUBJECT
from bench.fused.reference import Reference
from bench.kernels.limits import Ceilings
from bench.kernels.line import Line
from bench.kernels.peer import Peer, Skip
from bench.kernels.topology import Topology

UNIT = Ceilings(read=1e12, write=1e12, copy=1e12, cache={4 * 2**20: 4e12})
N, M, WIDTH = 30, 200, 8


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it():
    """The benchmark runs under JAX's defaults, not under this suite's strict ones."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("pattern", inputs.PATTERNS)
def test_graphs_depend_on_the_seed_alone(pattern):
    first, again = (inputs.generate(pattern, 1000, 9000, seed=3) for _ in range(2))
    for end in ("senders", "receivers"):
        ids = getattr(first, end).ids
        np.testing.assert_array_equal(ids, getattr(again, end).ids)
        assert ids.max() < 1000
    assert (first.senders.ids != first.receivers.ids).any()
    hubs = {"hub": (False, True), "hub-both": (True, True)}.get(pattern, (False, False))
    found = [end.longest_row > 800 for end in (first.senders, first.receivers)]
    assert tuple(found) == hubs
    if pattern == "local":
        assert np.abs(first.senders.ids - first.receivers.ids).max() <= 2 * 64


def test_rows_of_the_csr_are_in_the_callers_order():
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    ends = inputs.generate("uniform", N, M)
    starts, senders, order = ends.csr
    np.testing.assert_array_equal(order, np.argsort(ends.receivers.ids, kind="stable"))
    np.testing.assert_array_equal(np.diff(starts), ends.receivers.degrees)
    np.testing.assert_array_equal(senders, ends.senders.ids[order])


def test_limits_by_hand():
    ends = inputs.Ends(
        Topology("s", np.array([3, 0, 3, 1, 3], np.int32), 4),
        Topology("r", np.array([2, 0, 2, 1, 0], np.int32), 4),
    )
    row = 64 * 4
    spmm = limits.bytes_of("spmm", ends, 64, 4)
    assert (spmm.once, spmm.again) == (3 * row, 5 * row)
    assert (spmm.indices, spmm.written) == (4 * (5 + 5), 4 * row)
    weighted = limits.bytes_of("spmm weighted", ends, 64, 4)
    assert (weighted.once, weighted.again) == (3 * row + 5 * 4, 5 * row + 5 * 32)
    assert weighted.indices == 4 * (5 + 5 + 5)
    sddmm = limits.bytes_of("sddmm", ends, 64, 4)
    assert (sddmm.once, sddmm.again, sddmm.written) == (6 * row, 10 * row, 5 * 4)
    attention = limits.bytes_of("graph_attention", ends, 64, 4)
    assert (attention.once, attention.again) == (3 * row + 2 * 3 * row, 3 * row + 2 * 5 * row)
    both = limits.bytes_of("graph_attention" + GRADIENTS, ends, 64, 4)
    assert both.written == 4 * attention.written
    softmax = limits.bytes_of("edge_softmax", ends, 64, 4)
    assert (softmax.once, softmax.written) == (5 * HEADS * 4, 5 * HEADS * 4)
    largest = limits.bytes_of("segment_max" + GRADIENTS, ends, 64, 4)
    assert largest.once == 5 * row + 5 * row + 2 * 3 * row
    assert largest.written == 4 * row + 5 * row
    for op in OPS:
        found = limits.limit_of(op, ends, 64, 4, UNIT, on_gpu=False)
        assert 0 < found.once <= found.no_reuse


def test_limit_of_the_published_line():
    """512k nodes, 4M edges, rows of 64 float32 at 4.57 and 4.40 TB/s: 64 us, 270 without reuse."""
    card = Ceilings(4.57e12, 4.40e12, 4.28e12, {4 * 2**20: 9.5e12})
    ends = inputs.generate("uniform", 512 * 2**10, 4 * 2**20)
    found = limits.limit_of("spmm", ends, 64, 4, card, on_gpu=True)
    assert (round(found.once), round(found.no_reuse), found.judged_by) == (64, 270, "once")


@pytest.mark.parametrize("name", OPS)
def test_references_find_one_wrong_element(name):
    line = Line(name, "uniform", N, M, WIDTH)
    given = inputs.Inputs(line, inputs.generate("uniform", N, M), 0, 1)
    reference = Reference(given)
    result = jax.jit(given.xla)(given.ends.ids, *given.operands[0])
    assert reference.error(result) <= reference.allowed
    arrays = [np.array(x) for x in (result if isinstance(result, tuple) else (result,))]
    assert len(arrays) == (1 if OPS[name].primal is None else len(given.operands[0]))
    row = int(given.ends.receivers.ids[0])  # of edges it is one as well
    for k, array in enumerate(arrays):
        for wrong in (array[row] + 0.1, np.nan):
            broken = [x.copy() for x in arrays]
            broken[k][row] = wrong
            again = tuple(jnp.asarray(x) for x in broken)
            assert reference.error(again if len(again) > 1 else again[0]) > reference.allowed


@pytest.mark.parametrize(("name", "dtype"), [(n, "float32") for n in OPS] + [("spmm", "bfloat16")])
def test_jax_index_and_xla_are_measured(name, dtype):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    peers = [PEERS[peer] for peer in (SUBJECT, "xla")]
    bench = FusedBench(UNIT, peers, {}, on_gpu=False, seconds=0.003)
    record = bench.run(Line(name, "hub", N, M, WIDTH, dtype))
    assert "error" not in record
    assert record["longest_row"] > record["longest_row_of_senders"]
    for peer, entry in record["times"].items():
        assert entry["accurate"] or (dtype != "float32" and peer == "xla"), entry
        assert entry["us"] > 0
        assert entry["temp_bytes"] is not None
        assert entry["share"] == pytest.approx(record["limit_us"] / entry["us"])


def test_one_failing_peer_does_not_end_the_line():
    def broken(given, name):
        raise RuntimeError("no such kernel")

    bench = FusedBench(
        UNIT, [Peer("broken", "broken", broken), PEERS["xla"]], {}, on_gpu=False, seconds=0.003
    )
    record = bench.run(Line("sddmm", "uniform", N, M, WIDTH))
    assert record["times"]["broken"] == {"error": "RuntimeError: no such kernel"}
    assert record["times"]["xla"]["us"] > 0


def test_peers_of_gpus_say_why_they_do_not_run():
    given = inputs.Inputs(Line("spmm", "uniform", N, M, WIDTH), inputs.generate("hub", N, M), 0, 1)
    if jax.default_backend() == "cpu":
        with pytest.raises(Skip, match="GPUs"):
            PEERS["cusparse-alg2"].prepare(given, "n")


def test_a_contended_row_is_tried_on_few_edges_first(monkeypatch):
    tried = []

    def given(op, longest):
        receivers = SimpleNamespace(longest_row=longest, num_edges=6400)
        ends = SimpleNamespace(receivers=receivers)
        return SimpleNamespace(ends=ends, line=SimpleNamespace(op=op, dtype="float32"))

    def quick(kept):
        tried.append(kept)
        return lambda: None

    monkeypatch.setattr(contention.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(contention, "FLOAT32_LOOPS", False)
    contention.refuse_contended(given("spmm", 20_000), quick)
    contention.refuse_contended(given("segment_max", 2000), quick)
    assert tried == []
    contention.refuse_contended(given("segment_max", 20_000), quick)
    assert tried == [100]
    monkeypatch.setattr(contention, "PATIENCE", 0.0)
    with pytest.raises(Skip, match="20,000 edges share a row"):
        contention.refuse_contended(given("segment_max", 20_000), quick)


def _record(op, us, pattern="uniform", **peers):
    n, m = grid.LARGE
    times = {SUBJECT: {"us": us, "temp_bytes": 4 * m * 32}}
    times |= {name.replace("_", "-"): {"us": value} for name, value in peers.items()}
    return {
        "op": op, "pattern": pattern, "num_rows": n, "num_edges": m, "width": 64,
        "dtype": "float32", "times": times,
    }  # fmt: skip


def test_targets_compare_lines_of_one_shape():
    spmm = _record("spmm weighted", 200.0, xla=900.0, cusparse_alg2=300.0, cusparse_alg3=250.0)
    hub = _record("spmm weighted", 210.0, "hub")
    forward = _record("graph_attention", 500.0, xla=1400.0)
    both = _record("graph_attention" + GRADIENTS, 1300.0, xla=4000.0)
    records = [spmm, hub, forward, both]
    targets.judge(records, "gpu")
    found = [{v["figure"]: (v["value"], v["met"]) for v in r["verdicts"]} for r in records]
    assert found[0] == {"us": (200.0, True), "cuSPARSE": (1.25, False)}
    assert found[1] == {"over uniform": (1.05, False)}
    assert found[2] == {
        "over spmm": (2.5, False), "xla": (2.8, False), "temp of edges": (0.5, True)
    }  # fmt: skip
    assert found[3]["backward over spmm"] == (4.0, True)
    assert found[3]["xla"][1]
    spmm["times"]["cusparse-alg3"]["accurate"] = False
    targets.judge(records, "gpu")
    assert spmm["figures"]["cuSPARSE"] == 1.5


def test_grids_have_no_line_twice_and_begin_with_products():
    for on_gpu in (False, True):
        for quick in (False, True):
            lines = grid.default_lines(on_gpu, quick)
            assert len(set(lines)) == len(lines)
            assert {line.op for line in lines} == set(OPS)
            assert lines[0].op == "spmm weighted"
            assert {line.group for line in lines} <= set(grid.GROUPS)
    shapes = {(line.num_rows, line.num_edges) for line in grid.default_lines(True)}
    assert shapes == {grid.LARGE, grid.MIDDLE, grid.SMALL}


def test_smallest_run_writes_record_charts_and_markdown(tmp_path, capsys):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    record = tmp_path / "fused.json"
    ops = ["spmm weighted", "spmm", "graph_attention"]
    arguments = ["--sizes", f"{N}:{M}", "--widths", "8", "--patterns", "uniform,local"]
    arguments += ["--ops", ",".join(ops), "--seconds", "0.005", "--peers", f"{SUBJECT},xla,scipy"]
    assert cli.main([*arguments, "--json", str(record), "--charts", str(tmp_path)]) == 0
    result = json.loads(record.read_text())
    assert [(line["pattern"], line["op"]) for line in result["lines"]] == [
        (pattern, op) for pattern in ("uniform", "local") for op in ops
    ]
    assert len(list(tmp_path.glob("fused-*.svg"))) == 2
    assert "targets met" in capsys.readouterr().out
    text = readme.markdown(result)
    assert text.count("`spmm weighted`") >= 2
    assert "| 0, " in text or "| 0.0" in text  # temporary memory
    assert cli.main(["--quick", "--groups", "rest", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f" {name} " in listed for name in grid.REST)


def test_a_run_ends_when_its_time_is_over(tmp_path):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    record = tmp_path / "fused.json"
    arguments = ["--sizes", f"{N}:{M}", "--widths", "8", "--budget", "0.001", "--json", str(record)]
    assert cli.main(arguments) == 0
    result = json.loads(record.read_text())
    assert result["lines"] == []
    assert any("left out for lack of time" in note for note in result["notes"])
