# SPDX-License-Identifier: Apache-2.0
"""The main job: generator, TNTP files, assignment, host column, model and learning."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the main job needs scipy")
pytest.importorskip("optax", reason="the main job needs optax")

import jax
import jax.numpy as jnp
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from bench.assignment import Router
from bench.columns import COLUMNS
from bench.configurations import CONFIGURATIONS, Source
from bench.demand import Demand, generate_demand
from bench.host_round_trip import (
    host_gather,
    host_plan,
    host_scatter_add,
    host_segment_max,
    row_sums,
)
from bench.judge import add_repeats, compare_bits, learning
from bench.model import Variant, count_params, init_params, loss_terms
from bench.networks import Network, grid_network, permute_nodes
from bench.scenarios import Problem
from bench.step_profile import index_instructions, split
from bench.step_targets import judge_steps
from bench.tntp import read_tntp_flow, read_tntp_network, read_tntp_trips
from bench.train import Job, make_topology, run_job, train_batches

NET = """<NUMBER OF ZONES> 2\t\t
<NUMBER OF NODES> 4
<FIRST THRU NODE> 3
<NUMBER OF LINKS> 5
<ORIGINAL HEADER>~ \tinit\tterm ;
<END OF METADATA>


~\tinit_node\tterm_node\tcapacity\tlength\tfree_flow_time\tb\tpower\t;
\t1\t3\t999999\t1\t0\t0.15\t4\t;
\t3\t4\t100.5\t1\t2\t0.15\t4\t;   ~ the only through link
\t4\t2\t100\t1\t1\t0.15\t4\t;
\t2\t4\t100\t1\t1\t0.15\t4\t;

 4  3  100  1  2.5  0.15  4 ;
"""
TRIPS = """<NUMBER OF ZONES> 2
<TOTAL OD FLOW> 12.5
<END OF METADATA>

Origin  1
    1 :  4.0;    2 :   10.0;
Origin 2
    1 :  2.5;  2:0.0;
"""
FLOW = "From \tTo \tVolume \tCost\n3 4 10 2\n1\t3\t10.0\t0 ;\n4 2 10 1\n2 4 2.5 1\n4 3 2.5 2\n"
NODE = "node\tX\tY\t;\n1\t-96.5\t43\t;\n2 0 1 ;\n3 5.5 2\n4\t1e2\t3\t;\n"


@pytest.fixture(autouse=True, scope="module")
def as_users_have_it():
    """The main job runs under JAX's defaults, not under this suite's strict ones."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def data_folder() -> Path:
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("JAX_INDEX_DATA", default)) / "tntp"


def generated(name: str) -> Network:
    return Source(config=name).network()


@pytest.mark.parametrize("name", ["tiny", "city", "road-42955"])
def test_generated_network_is_exact(name):
    configuration, network = CONFIGURATIONS[name], generated(name)
    assert network.num_nodes == configuration.rows * configuration.cols
    assert network.num_links == configuration.road_links
    links = network.senders.astype(np.int64) * network.num_nodes + network.receivers
    assert (np.diff(links) > 0).all()  # sorted by (sender, receiver), none twice
    assert (network.senders != network.receivers).all()
    assert np.bincount(network.senders).max() <= 6
    assert np.bincount(network.receivers).max() <= 6
    graph = coo_array((np.ones(network.num_links), (network.senders, network.receivers)))
    assert connected_components(graph, connection="strong")[0] == 1
    assert len(np.unique(network.zones)) == configuration.zones


def test_generated_network_depends_on_the_seed_alone():
    first, again, other = (grid_network("g", 9, 9, 250, 9, seed) for seed in (1, 1, 2))
    assert (first.senders == again.senders).all()
    assert (first.time == again.time).all()
    assert (first.senders != other.senders).any()


@pytest.mark.parametrize("name", ["tiny", "city", "road-42955", "od-hubs"])
def test_generated_demand_is_exact(name):
    configuration, network = CONFIGURATIONS[name], generated(name)
    demand = generate_demand(network, configuration.destinations, configuration.sigma, seed=0)
    assert demand.num_pairs == configuration.od_links
    pairs = demand.origins.astype(np.int64) * network.num_nodes + demand.destinations
    assert (np.diff(pairs) > 0).all()
    assert (demand.origins != demand.destinations).all()
    assert (np.bincount(demand.origins)[network.zones] == configuration.destinations).all()
    if name == "road-42955":
        degree = np.bincount(demand.destinations, minlength=network.num_nodes)
        degree = degree[degree > 0]
        assert 15 <= np.median(degree) <= 25
        assert 200 <= degree.max() <= 600


def test_permuted_network_is_the_same_graph():
    network = grid_network("g", 9, 9, 250, 9, 0)
    permuted = permute_nodes(network, seed=3)
    place = {tuple(xy): i for i, xy in enumerate(network.coordinates)}
    old = np.array([place[tuple(xy)] for xy in permuted.coordinates])
    links = set(zip(network.senders.tolist(), network.receivers.tolist(), strict=True))
    back = zip(old[permuted.senders].tolist(), old[permuted.receivers].tolist(), strict=True)
    assert set(back) == links
    assert sorted(old[permuted.zones]) == network.zones.tolist()
    assert (permuted.senders != network.senders).any()


def test_heaviest_pairs_keep_their_order():
    demand = Demand(np.array([0, 0, 0, 2]), np.array([1, 2, 3, 0]), np.array([3.0, 1.0, 2.0, 9.0]))
    kept = demand.heaviest(2)
    assert kept.origins.tolist() == [0, 0, 2]
    assert kept.destinations.tolist() == [1, 3, 0]


@pytest.fixture
def files(tmp_path):
    for name, text in (("net", NET), ("trips", TRIPS), ("flow", FLOW), ("node", NODE)):
        (tmp_path / f"Toy_{name}.tntp").write_text(text)
    return {name: tmp_path / f"Toy_{name}.tntp" for name in ("net", "trips", "flow", "node")}


def test_tntp_files_are_read(files):
    network = read_tntp_network(files["net"], files["node"])
    assert (network.name, network.num_nodes, network.first_through) == ("Toy", 4, 2)
    assert network.senders.tolist() == [0, 2, 3, 1, 3]
    assert network.receivers.tolist() == [2, 3, 1, 3, 2]
    assert network.time.tolist() == [0, 2, 1, 1, 2.5]
    assert network.capacity[1:].tolist() == [100.5, 100, 100, 100]
    assert 1000 <= network.capacity[0] <= 1010  # "no limit" is cut to 10 medians
    assert network.zones.tolist() == [0, 1]
    assert network.coordinates[3].tolist() == [100, 3]
    assert not read_tntp_network(files["net"]).coordinates.any()
    demand = read_tntp_trips(files["trips"], 2)
    assert demand.origins.tolist() == [0, 1]
    assert demand.destinations.tolist() == [1, 0]
    assert demand.amount.tolist() == [10, 2.5]
    assert read_tntp_flow(files["flow"], network).tolist() == [10, 10, 10, 2.5, 2.5]


def test_tntp_errors_name_the_file(files):
    files["net"].write_text(NET.replace("\t2\t4\t", "\t2\t9\t"))
    with pytest.raises(ValueError, match=r"Toy_net.*outside 1 to 4"):
        read_tntp_network(files["net"])
    with pytest.raises(ValueError, match=r"Toy_trips.*outside 1 to 1"):
        read_tntp_trips(files["trips"], 1)
    with pytest.raises(ValueError, match=r"Toy_node.*is this a TNTP file"):
        read_tntp_network(files["node"])


def test_no_path_through_a_node_below_first_through():
    """The quick way 2 -> 0 -> 3 leads through a zone; trips take 2 -> 4 -> 3."""
    links = np.array([[2, 0], [0, 3], [2, 4], [4, 3], [0, 2], [3, 1]], np.int32)
    network = Network(
        "toy", 5, links[:, 0], links[:, 1], np.array([1.0, 1, 5, 5, 1, 1]), np.ones(6),
        np.zeros((5, 2)), np.array([0, 1], np.int32), first_through=2,
    )  # fmt: skip
    router = Router.of(network)
    through = Demand(np.array([2]), np.array([1]), np.array([7.0]))
    flow, reached = router.assign(network.time, through, through.amount)
    assert flow.tolist() == [0, 0, 7, 7, 0, 7]
    assert reached.all()
    from_zone = Demand(np.array([0, 0]), np.array([1, 2]), np.array([2.0, 3.0]))
    assert router.assign(network.time, from_zone, from_zone.amount)[0].tolist() == [
        0, 2, 0, 0, 3, 2,
    ]  # fmt: skip
    nowhere = Demand(np.array([3]), np.array([0]), np.array([1.0]))
    flow, reached = router.assign(network.time, nowhere, nowhere.amount)
    assert not flow.any()
    assert not reached.any()


def test_parallel_links_share_no_flow():
    network = Network(
        "toy", 2, np.array([0, 0], np.int32), np.array([1, 1], np.int32), np.array([2.0, 1.0]),
        np.ones(2), np.zeros((2, 2)), np.array([0, 1], np.int32),
    )  # fmt: skip
    demand = Demand(np.array([0]), np.array([1]), np.array([3.0]))
    assert Router.of(network).assign(network.time, demand, demand.amount)[0].tolist() == [0, 3]


def scalar_row_sum(values: list[np.float32]) -> np.float32:
    """The written order, one number at a time."""
    while True:
        folded = []
        for start in range(0, max(len(values), 1), 32):
            total = np.float32(0)
            for value in values[start : start + 32]:
                total = np.float32(total + value)
            folded.append(total)
        if len(folded) == 1:
            return folded[0]
        values = folded


@pytest.mark.parametrize("lengths", [[0, 1, 31, 32, 33, 0, 64, 65, 3], [1025, 2, 0], [0, 0], [7]])
def test_host_sum_has_the_written_order(lengths):
    rng = np.random.default_rng(sum(lengths))
    ids = rng.permutation(np.repeat(np.arange(len(lengths)), lengths))
    y = (
        rng.standard_normal((len(ids), 2, 1)) * 10.0 ** rng.integers(-6, 6, (len(ids), 2, 1))
    ).astype(np.float32)
    got = row_sums(y, host_plan(ids, len(lengths)))
    want = [
        [[scalar_row_sum(list(y[ids == r, b, 0]))] for b in (0, 1)] for r in range(len(lengths))
    ]
    np.testing.assert_array_equal(got.view(np.uint32), np.array(want, np.float32).view(np.uint32))


def test_host_ops_are_adjoint_and_keep_subnormals():
    ids = np.array([2, 0, 2, 2], np.int32)
    plan = host_plan(ids, 3)
    y = jnp.full((4, 1, 1), 1e-40, jnp.float32)
    sums = np.asarray(jax.jit(host_scatter_add)(y, plan))
    assert sums[2, 0, 0] > 2.9e-40
    x, ct = jnp.arange(3.0).reshape(3, 1, 1), jnp.arange(4.0).reshape(4, 1, 1)
    rows, pull = jax.vjp(lambda x: host_gather(x, plan), x)
    assert rows.ravel().tolist() == [2, 0, 2, 2]
    assert pull(ct)[0].ravel().tolist() == [1, 0, 5]


def test_parameter_count():
    assert count_params(init_params(0, 5)) == 317_314


@pytest.fixture(scope="module")
def tiny() -> Problem:
    return Source(config="tiny").problem()


def run(column: str, problem: Problem, steps: int, **options) -> dict:
    job = Job(column, 0, (8,), {8: steps}, {8: None}, 3, 8, 0.0, **options)
    return run_job(job, problem, lambda phase, done, total: None)


@pytest.fixture(scope="module")
def host(tiny):
    return run("host", tiny, 8)


def test_scenarios_conserve_flow(tiny):
    net = np.zeros_like(tiny.net_demand)
    np.add.at(net, tiny.senders, tiny.flows)
    np.subtract.at(net, tiny.receivers, tiny.flows)
    np.testing.assert_allclose(net, tiny.net_demand, atol=1e-5)
    assert (tiny.num_train, tiny.num_held_out) == (48, 16)


def test_loss_falls_and_columns_agree(tiny, host):
    native = run("xla", tiny, 60)
    assert learning(native, 8)["fall"] > 0.5
    few = host["batches"]["8"]
    np.testing.assert_allclose(few["losses"], native["batches"]["8"]["losses"][:8], rtol=0.02)
    np.testing.assert_allclose(few["losses"][0], native["batches"]["8"]["losses"][0], rtol=1e-5)
    assert native["batches"]["8"]["held_out"]["flow_correlation"] > 0.5


def test_jax_index_has_the_bits_of_the_host(tiny, host):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    subject = run("jax_index", tiny, 8)
    bits = compare_bits(host, subject, 8)
    assert bits["loss_equal"]
    assert bits["gradients_equal"]
    assert bits["params_equal"]


def test_fused_column_agrees_and_repeats_its_bits(tiny, host):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    fused = run("jax_index-fused", tiny, 8, measure=False, again=True)
    ours, reference = (record["batches"]["8"] for record in (fused, host))
    np.testing.assert_allclose(ours["losses"], reference["losses"], rtol=0.02)
    np.testing.assert_allclose(ours["losses"][0], reference["losses"][0], rtol=1e-5)
    assert ours["temp_bytes"] < reference["temp_bytes"]
    result = {"columns": {"jax_index-fused": {}}, "learn_batch": 8}
    add_repeats(result, lambda column, steps, again: fused, 8)
    assert result["repeats"]["same_process"]
    assert result["repeats"]["second_process"]
    ours["again"]["params_digest"] = "another"
    add_repeats(result, lambda column, steps, again: fused, 8)
    assert not result["repeats"]["same_process"]


@pytest.mark.parametrize(
    ("variant", "rtol"), [(Variant("segment"), 1e-5), (Variant(dtype="bfloat16"), 0.02)]
)
def test_variants_agree_between_columns(tiny, variant, rtol):
    pytest.importorskip("jax_index", reason="jax_index is not installed")
    params = init_params(0, tiny.features.shape[2])
    batch = next(train_batches(tiny, 8, 0))
    found = []
    for column in ("xla", "jax_index-fused"):
        ops = COLUMNS[column].make_ops()
        fn = jax.jit(lambda *operands, ops=ops: loss_terms(ops, variant, *operands))
        loss, ratio = fn(params, make_topology(ops, tiny), batch)
        assert ratio.dtype == loss.dtype == jnp.float32
        found.append(float(loss))
    np.testing.assert_allclose(found[1], found[0], rtol=rtol)


def test_host_maxima_of_rows():
    ids = np.array([2, 0, 2, 2], np.int32)
    y = jnp.array([[1.0], [-3.0], [5.0], [2.0]])
    maxima = host_segment_max(y, host_plan(ids, 4))
    assert maxima.ravel().tolist() == [-3.0, -np.inf, 5.0, -np.inf]


def test_host_sums_narrow_floats_in_float32():
    y = jnp.full((300, 1, 1), 1.0078125, jnp.bfloat16)  # alone, bfloat16 would stop at 256
    total = host_scatter_add(y, host_plan(np.zeros(300, np.int32), 1))
    assert total.dtype == jnp.bfloat16
    assert float(total[0, 0, 0]) == float(jnp.bfloat16(302.34375))


HLO = """HloModule jit_train_step
%region_0.1 (a: f32[], b: f32[]) -> f32[] {
  ROOT %add.1 = f32[] add(%a, %b), metadata={op_name="jit(f)/scatter-add"}
}
%fused_computation.3 (p: f32[4]) -> f32[4] {
  %gather.9 = f32[4]{0} gather(%p, %i), metadata={op_name="jit(f)/gather"}
  ROOT %mul.1 = f32[4]{0} multiply(%gather.9, %p)
}
%fused_computation.4 (p: f32[4]) -> f32[4] {
  ROOT %bitcast.4 = f32[4]{0} bitcast(%p), metadata={op_name="jit(f)/scatter-add"}
}
ENTRY %main (x: f32[4]) -> f32[4] {
  %loop_multiply_fusion.2 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused_computation.3
  %copy_fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused_computation.4
  %all-gather.1 = f32[4]{0} all-gather(%x), dimensions={0}
  %reduce.7 = f32[]{} reduce(%x, %c), to_apply=%region_0.1
  %call.2 = f32[4]{0} custom-call(%x), metadata={op_name="jit(f)/jax_index_scatter_add"}
  ROOT %wrapped_scatter = f32[4]{0} scatter(%x, %i, %u), to_apply=%region_0.1
}
"""


def test_kernels_that_move_rows_by_index_are_told_apart():
    names = index_instructions(HLO)
    assert names == {"gather_9", "loop_multiply_fusion_2", "call_2", "wrapped_scatter"}

    def event(name, ns, **stats):
        return SimpleNamespace(name=name, duration_ns=ns, stats=list(stats.items()))

    events = [
        event("loop_multiply_fusion_2", 1e6),
        event("void jax_index::sm90::wide_kernel<float>()", 2e6),
        event("ampere_sgemm_128x64", 4e6, hlo_op="cublas-gemm.3"),
        event("anything", 8e6, hlo_op="call.2"),
    ]
    stream = SimpleNamespace(name="Stream #1", events=[e for e in events for _ in range(2)])
    found = split([SimpleNamespace(lines=[stream])], names, steps=2)
    assert found["kernel_ms"] == pytest.approx(15)
    assert found["index_ms"] == pytest.approx(11)
    assert found["kernels"] == 4
    assert [k["index"] for k in found["longest"]] == [True, False, True, True]


def test_targets_of_the_step():
    def column(ms):
        run = {"train_ms": ms, "temp_bytes": ms, "profile": {"kernel_ms": ms, "index_ms": ms}}
        return {"batches": {"8": run}}

    result = {"device": {"backend": "gpu"}, "dtype": "float32"}
    result["columns"] = {"xla": column(12), "jax_index-fused": column(10)}
    met = {v["what"].split(",")[0]: v["met"] for v in judge_steps(result)}
    assert met == {
        "training step": True, "kernel time": True, "index work": False, "temp memory": False
    }  # fmt: skip
    result["columns"]["xla"] = {"error": "did not run"}
    assert judge_steps(result) == []
    assert judge_steps({**result, "device": {"backend": "cpu"}}) == []


def test_columns_are_known():
    assert list(COLUMNS) == ["host", "xla", "xla-deterministic", "jax_index", "jax_index-fused"]


@pytest.mark.parametrize(
    ("name", "nodes", "links", "pairs"),
    [("SiouxFalls", 24, 76, 528), ("Anaheim", 416, 914, 1406)],
)
def test_real_networks(name, nodes, links, pairs):
    folder = data_folder()
    if not folder.is_dir():
        pytest.skip(f"no TNTP files in {folder}; JAX_INDEX_DATA names the folder above tntp")
    parts = {part: folder / f"{name}_{part}.tntp" for part in ("net", "trips", "flow")}
    problem = Source(**parts, num_scenarios=4).problem()
    assert problem.features.shape == (nodes, 5, nodes)
    assert (len(problem.senders), len(problem.od_senders)) == (links, pairs)
    assert problem.published
    net = np.zeros(nodes)
    np.add.at(net, problem.senders, problem.flows[:, -1])
    np.subtract.at(net, problem.receivers, problem.flows[:, -1])
    np.testing.assert_allclose(net, problem.net_demand[:, -1], atol=0.005)


def test_command_writes_record_and_chart(tmp_path):
    """The whole way: child processes, table, record, chart."""
    pytest.importorskip("matplotlib", reason="the chart needs matplotlib")
    pytest.importorskip("rich", reason="the table needs rich")
    root = Path(__file__).resolve().parents[1]
    record, chart = tmp_path / "run.json", tmp_path / "run.svg"
    command = [sys.executable, "-m", "bench", "hetgat", "--config", "tiny", "--columns", "xla"]
    command += ["--steps", "3", "--scenarios", "16", "--json", str(record), "--chart", str(chart)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "train ms/step, B = 8" in done.stdout
    result = json.loads(record.read_text())
    assert result["columns"]["xla"]["batches"]["8"]["steps"] == 3
    assert result["workload"]["held_out"] == 4
    assert result["machine"]["versions"]["jax"] == jax.__version__
    assert "</svg>" in chart.read_text()
