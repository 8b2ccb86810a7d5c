# SPDX-License-Identifier: Apache-2.0
"""What `bench ops` makes of its figures: kernel times, cost against size, real inputs, README."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rich", reason="the benchmarks need rich")
pytest.importorskip("matplotlib", reason="the charts need matplotlib")

import jax
import jax.numpy as jnp

from bench.fused.inputs import generate
from bench.fused.measure import FusedBench
from bench.fused.peers import PEERS as FUSED_PEERS
from bench.kernels import (
    cases,
    ceilings,
    charts,
    cli,
    grid,
    peers_torch,
    pending,
    profile,
    readme,
    real_inputs,
    targets,
)
from bench.kernels.limits import Ceilings
from bench.kernels.line import Line
from bench.kernels.measure import Bench
from bench.kernels.peers import PEERS, SUBJECT
from bench.kernels.timing import graph_replay

UNIT = Ceilings(read=1e12, write=1e12, copy=1e12, cache={4 * 2**20: 4e12})


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it():
    """The benchmark runs under JAX's defaults, not under this suite's strict ones."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(autouse=True)
def quick_ceilings(monkeypatch):
    monkeypatch.setattr(ceilings, "CPU_BYTES", 2**22)


# --- Kernel times -------------------------------------------------------------------------------


def event(start, us, module="jit_anything"):
    stats = [("hlo_module", module), (None, 1)] if module else []
    return SimpleNamespace(stats=stats, start_ns=start, duration_ns=us * 1000)


def plane(*events, name="Stream #7(Compute)"):
    derived = SimpleNamespace(name="XLA Ops", events=[event(0, 999)])
    return SimpleNamespace(lines=[SimpleNamespace(name=name, events=list(events)), derived])


BETWEEN = f"jit_{profile.SEPARATOR}"


def test_kernels_belong_to_programs_by_their_place():
    """Two kernels a call, then one of another library, out of order in the trace."""
    first = [event(10, 5), event(20, 1), event(30, 7), event(40, 1), event(50, 6), event(60, 1)]
    second = [event(80, 3, module=None), event(90, 4, module=None)]
    begins, between = event(1, 50, f"jit_{profile.BEGIN}"), event(70, 2, BETWEEN)
    found = profile.split_at_separators([plane(*second, between, *first, begins)], [3, 2])
    assert [(t.us, t.kernels, t.calls) for t in found] == [(7, 2, 3), (3.5, 1, 2)]
    assert found[0].spread == pytest.approx(2 / 7)


def test_lost_events_give_the_mean_or_nothing():
    found = profile.split_at_separators(
        [plane(event(1, 6), event(2, 6), event(3, 6), event(4, 1, BETWEEN), event(5, 9))], [2, 2]
    )
    assert (found[0].us, found[0].kernels) == (9, 1.5)
    assert found[1] is None
    with pytest.raises(RuntimeError, match="2 programs where 3 ran"):
        profile.split_at_separators([plane(event(1, 6), event(2, 1, BETWEEN))], [1, 1, 1])


def test_longer_programs_are_traced_less_often():
    assert [profile.calls_for(s) for s in (1e-6, 1e-3, 1.0)] == [profile.MOST, 12, profile.FEWEST]


def fake_trace(monkeypatch, us_of):
    """Traces in which every call is one kernel: of us_of(k) microseconds in the k-th program."""
    counts = []

    def traced(run):
        run()
        programs = [[event(0, us_of(k)) for _ in range(n)] for k, n in enumerate(counts.pop(0))]
        events = programs[0]
        for program in programs[1:]:
            events = [*events, event(0, 1, BETWEEN), *program]
        for k, one in enumerate(events):
            one.start_ns = k
        return [plane(*events)]

    times = profile.kernel_times

    def kernel_times(runners, calls):
        counts.append(list(calls))
        return times(runners, calls)

    monkeypatch.setattr(profile, "traced", traced)
    monkeypatch.setattr(profile, "kernel_times", kernel_times)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gpu_line_has_the_kernels_time_beside_the_dispatched_one(monkeypatch, dtype):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    fake_trace(monkeypatch, lambda k: 0.25 * (k + 1))
    peers = [PEERS[name] for name in (SUBJECT, "xla", "xla-sorted", "torch-add")]
    bench = Bench(UNIT, peers, {}, on_gpu=True, seconds=0.01, graphs=False)
    record = bench.run(Line("scatter_add", "sorted", 10, 80, 4, dtype))
    dispatched = {k: e["us"] for k, e in record["times"].items() if "us" in e}
    assert {record["times"][name]["method"] for name in dispatched} == {"dispatch"}
    assert bench.finish() == []
    for k, name in enumerate((SUBJECT, "xla", "xla-sorted")):
        entry = record["times"][name]
        assert (entry["us"], entry["method"], entry["kernels"]) == (0.25 * (k + 1), "profiler", 1)
        assert entry["dispatch_us"] == dispatched[name]
        assert entry["share"] == record["limit_us"] / entry["us"]


def test_fused_lines_are_timed_the_same_way(monkeypatch):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    fake_trace(monkeypatch, lambda k: 1e9 * (k + 1))
    peers = [FUSED_PEERS[name] for name in (SUBJECT, "xla")]
    bench = FusedBench(UNIT, peers, {}, on_gpu=True, seconds=0.01, graphs=False)
    bench._topologies["uniform", 20, 90] = generate("uniform", 20, 90)
    record = bench.run(Line("spmm weighted", "uniform", 20, 90, 8))
    notes = bench.finish()
    found = {name: (e["us"], e["method"]) for name, e in record["times"].items()}
    assert found == {SUBJECT: (1e9, "profiler"), "xla": (2e9, "profiler")}
    assert len(notes) == 1
    assert notes[0].startswith("The kernels of 2 programs take longer in the trace than")


def test_without_a_trace_dispatched_times_stand(monkeypatch):
    tries = []

    def no_trace(run):
        tries.append(run)
        raise OSError("no such device")

    monkeypatch.setattr(profile, "traced", no_trace)
    monkeypatch.setattr(pending, "HELD_BYTES", 0)  # a trace after every line
    bench = Bench(UNIT, [PEERS["xla"]], {}, on_gpu=True, seconds=0.01, graphs=False)
    records = [bench.run(Line("gather", "uniform", 10, 40, width)) for width in (1, 2, 3)]
    assert all(r["times"]["xla"]["method"] == "dispatch" for r in records)
    notes = bench.finish()
    assert [note.split(":")[0] for note in notes] == ["No trace of 2 programs (OSError"]
    assert len(tries) == pending.GIVE_UP


def test_without_separators_programs_are_traced_one_by_one(monkeypatch):
    def traced(run):
        run()
        return [plane(*(event(k, 0.5) for k in range(profile.FEWEST)))]

    monkeypatch.setattr(profile, "traced", traced)
    monkeypatch.setattr(profile, "calls_for", lambda seconds: profile.FEWEST)
    bench = Bench(UNIT, [PEERS["xla"]], {}, on_gpu=True, seconds=0.01, graphs=False)
    records = [bench.run(Line("gather", "uniform", 10, 40, width)) for width in (1, 2)]
    assert bench.finish() == []
    assert [r["times"]["xla"]["us"] for r in records] == [0.5, 0.5]


def test_slow_programs_are_not_traced(monkeypatch):
    fake_trace(monkeypatch, lambda k: 1)
    waiting, calls = pending.Pending(), SimpleNamespace(nbytes=8, wait=lambda: None)
    record = {"times": {"slow": {"us": 1e6, "method": "dispatch"}, "failed": {"error": "x"}}}
    for name in record["times"]:
        waiting.add(record, name, calls)
    waiting.trace()
    assert record["times"]["slow"] == {"us": 1e6, "method": "dispatch"}
    assert waiting.notes() == []


def test_a_chain_of_xla_gathers_keeps_every_one():
    ids = jnp.arange(40) % 10
    found = graph_replay(lambda x, i: x.at[i].get(), jnp.ones((10, 4)), ids, 0.02, length=5)
    assert found["with_chain_us"] > 0
    with pytest.raises(RuntimeError, match="XLA kept"):
        graph_replay(lambda x, i: x[:1] + i[0], jnp.ones((10, 4)), ids, 0.02, length=5)


def test_ceilings_and_cases_are_timed_by_kernels_too(monkeypatch):
    monkeypatch.setattr(ceilings, "GPU_BYTES", 2**20)
    fake_trace(monkeypatch, lambda k: 2.0 ** (k + 1))
    rates = {(what, program): rate for what, program, rate in ceilings._xla_kernels()}
    assert rates == {
        ("read", "XLA row maximum"): 2**19 * 1e6,
        ("write", "XLA constant"): 2**18 * 1e6,
        ("copy", "XLA scaled copy"): 2**18 * 1e6,
    }
    jobs = {name: (lambda x, plan: x + plan, jnp.ones(4), 1.0) for name in ("one", "two")}
    assert cases.microseconds(jobs, on_gpu=True) == {"one": 2.0, "two": 4.0}
    assert {rate > 0 for *_, rate in ceilings._xla_dispatched()} == {True}


@pytest.mark.parametrize(("delays", "counts"), [((0.03, 0.03), True), ((0.03, 0), False)])
def test_a_slow_call_of_torch_counts_once_unless_it_was_loading(monkeypatch, delays, counts):
    left = list(delays)
    torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    monkeypatch.setattr(peers_torch, "torch_module", lambda: torch)
    monkeypatch.setattr(peers_torch, "SLOW", 0.02)
    found = peers_torch._first_call(lambda: time.sleep(left.pop(0)))
    assert left == []
    assert (found is not None and found >= 0.03) == counts


# --- Cost against size --------------------------------------------------------------------------


def test_scale_goes_from_a_thousand_to_beyond_two_to_the_31():
    lines = grid.scale_lines(on_gpu=True)
    assert len(set(lines)) == len(lines)
    for width, largest in ((64, grid.LARGEST), (1, grid.MOST_IDS)):
        for op in grid.FORWARD:
            sizes = [x.num_edges * x.width for x in lines if (x.op, x.width) == (op, width)]
            assert min(sizes) <= 1000
            assert max(sizes) == largest
            assert all(any(s <= 10**k < 11 * s for s in sizes) for k in range(3, 9))
    assert grid.LARGEST > 2**31
    assert max(x.num_edges for x in lines) <= grid.MOST_IDS
    on_cpu = grid.scale_lines(on_gpu=False)
    assert max(x.num_edges * x.width for x in on_cpu) == grid.CPU_ELEMENTS


def test_scale_run_writes_a_record_and_its_chart(tmp_path, monkeypatch):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    monkeypatch.setattr(grid, "CPU_ELEMENTS", 10_000)
    record = tmp_path / "scale.json"
    arguments = ["--scale", "--seconds", "0.01", "--budget", "30"]
    assert cli.main([*arguments, "--json", str(record), "--charts", str(tmp_path)]) == 0
    lines = json.loads(record.read_text())["lines"]
    assert [(r["op"], r["width"], r["num_edges"]) for r in lines] == [
        (op, width, elements // width)
        for width in (64, 1)
        for elements in (1000, 10_000)
        for op in grid.FORWARD
    ]
    assert all(set(r["times"]) == {SUBJECT, "xla"} for r in lines)
    assert [p.name for p in tmp_path.glob("*.svg")] == ["ops-scale-cpu.svg"]
    text = readme.markdown(json.loads(record.read_text()))
    assert text.startswith("Cost against size:\n\n| pattern (rows, edges, width) | gather us")
    assert "| uniform (19, 156, 64) | **" in text


# --- Real inputs --------------------------------------------------------------------------------


def test_real_inputs_are_read():
    found = real_inputs.real_inputs()
    if not found:
        pytest.skip(f"no files in {real_inputs.data_folder()}; JAX_INDEX_DATA names the folder")
    for name in real_inputs.headline(list(found)):
        t = found[name]()
        assert t.name == name
        assert t.num_edges > 0
        assert t.ids.min() >= 0
        assert t.ids.max() < t.num_rows


def test_a_trace_is_repeated_with_its_stride(tmp_path):
    (tmp_path / "spatter").mkdir()
    entry = {"pattern": [5, 0, 2], "delta": 4, "count": 3, "kernel": "Gather"}
    (tmp_path / "spatter" / "toy.json").write_text(json.dumps([entry]))
    t = real_inputs.real_inputs(tmp_path)["spatter:toy-0"]()
    assert t.ids.tolist() == [5, 0, 2, 9, 4, 6, 13, 8, 10]
    assert t.num_rows == 14


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with one graph, one road network and one trace."""
    folders = {name: tmp_path / "data" / name for name in ("graphs", "tntp", "spatter")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    receivers = np.arange(30, dtype=np.int32) % 7
    np.savez(folders["graphs"] / "pubmed.npz", receivers=receivers, num_nodes=7)
    net = "<NUMBER OF NODES> 3\n<NUMBER OF LINKS> 2\n<FIRST THRU NODE> 1\n<END OF METADATA>\n"
    net += "~ \tinit\tterm\tcapacity\tlength\ttime\tb\tpower\tspeed\ttoll\ttype\t;\n"
    net += "\t1\t2\t10\t1\t1\t0.15\t4\t0\t0\t1\t;\n\t2\t3\t10\t1\t1\t0.15\t4\t0\t0\t1\t;\n"
    (folders["tntp"] / "ChicagoRegional_net.tntp").write_text(net)
    entry = {"pattern": [0, 4, 2], "delta": 3, "count": 5, "kernel": "Gather"}
    (folders["spatter"] / "amg.json").write_text(json.dumps([entry]))
    monkeypatch.setenv("JAX_INDEX_DATA", str(tmp_path / "data"))


def test_real_inputs_reach_record_chart_and_page(data, tmp_path):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    record = tmp_path / "ops.json"
    arguments = ["--groups", "real", "--seconds", "0.01", "--no-cases", "--json", str(record)]
    assert cli.main([*arguments, "--charts", str(tmp_path)]) == 0
    result = json.loads(record.read_text())
    names = ("graph:pubmed", "road:ChicagoRegional", "spatter:amg-0")
    assert [(r["pattern"], r["op"]) for r in result["lines"]] == [
        (name, op) for name in names for op in grid.FORWARD
    ]
    assert (tmp_path / "ops-real-cpu.svg").is_file()
    text = readme.markdown(result)
    rows = [line for line in text.splitlines() if line.startswith(tuple(f"| {n} " for n in names))]
    assert len(rows) == 3
    assert text.index("Real graphs") < text.index(rows[0])


# --- README -------------------------------------------------------------------------------------


def line_of(op, pattern, us, xla_us, width=64, limit=90.0, group="wide", **more):
    rows, edges = 2**19, 2**22
    size = {"num_rows": rows, "num_edges": edges, "sorted": False, "longest_row": 20}
    limits = {"once": limit, "no_reuse": limit, "cache": 1.0, "bytes_once": 10**9}
    times = {SUBJECT: {"us": us, "method": "profiler", **more}}
    times["xla"] = {"us": xla_us, "method": "profiler"}
    return {
        "op": op, "pattern": pattern, "group": group, "dtype": "float32", "width": width,
        "row_bytes": 4 * width, "limit": {**limits, "working_set": 10**9, "judged_by": "once"},
        "limit_us": limit, "cache_resident": False, "times": times, **size,
    }  # fmt: skip


def result_of(*lines):
    return {
        "lines": list(lines),
        "device": {"backend": "gpu", "device": "a card"},
        "machine": {"cpu": "c", "cores": 1, "versions": {"jax": "0"}, "time": "2026-01-01T00",
                    "commit": "abc"},
        "ceilings": {"read": 4e12, "write": 4e12, "copy": 4e12},
    }  # fmt: skip


def test_page_has_both_ops_in_a_row_and_every_target_with_its_figure():
    text = readme.markdown(
        result_of(
            line_of("gather", "uniform", 100.0, 150.0),
            line_of("scatter_add", "uniform", 100.0, 90.0),
            line_of("scatter_add", "local", 95.0, 200.0, graph={"us": 80.0}),
        )
    )
    assert (
        "| uniform (512k, 4M, 64) | **100** (90%) | 150 (1.5) | **100** (90%) | 90 (0.9) |" in text
    )
    assert "| local (512k, 4M, 64) | - | - | **95** (95%; replayed 80) | 200 (2.11) |" in text
    assert "| gather, rows of 256 B or more: share of the limit | ≥ 0.85 | 1 of 1 |" in text
    missed = "≥ 0.92 | 1 of 2 | uniform 4M x 64 **0.9**, local 4M x 64 0.947 |"
    assert missed in text
    assert "rows of 256 B or more, hub: share of the limit | ≥ 0.88 | - | not measured" in text
    assert "Lost to a peer, 1 of 3 measured lines" in text
    assert "\n- `scatter_add`: uniform (512k, 4M, 64) XLA 0.90" in text
    assert "jax_index and XLA: kernels alone, by the profiler (6)." in text


def test_narrow_lanes_are_compared_with_wide_ones():
    wide, narrow = (
        line_of("gather", "uniform", 100.0, 1e3),
        line_of("gather", "uniform", 110.0, 1e3, 33),
    )
    targets.judge([wide, narrow], "gpu", 1e12)
    found = {v["figure"]: (v["value"], v["met"]) for v in narrow["verdicts"]}
    assert found["of lanes"] == (pytest.approx(100 / 110), True)
    assert "of lanes" not in {v["figure"] for v in wide["verdicts"]}


def test_targets_have_names_of_their_own():
    named = [(t.what, t.figure, t.bound, t.backend) for t in targets.TARGETS]
    assert len(set(named)) == len(named)
    assert all(t.figure in readme.FIGURES for t in targets.TARGETS)


def test_charts_of_a_gpu_record_with_every_group(tmp_path):
    result = result_of(
        line_of("gather", "uniform", 100.0, 150.0),
        line_of("scatter_add", "road:town", 5.0, 9.0, group="real"),
        line_of("gather", "uniform", 100.0, 150.0, group="scale"),
        line_of("scatter_add", "uniform", 100.0, 150.0, width=1, group="scale"),
    )
    drawn = [path.name for path in charts.draw_all(result, tmp_path)]
    assert drawn == [f"ops-{name}-gpu.svg" for name in ("limit", "peers", "real", "scale")]
