# SPDX-License-Identifier: Apache-2.0
"""Graphs in parts: layout, errors, and what child processes with more devices find."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index
from jax_index import _blocks

PROGRAM = Path(__file__).with_name("partition_program.py")
ROOT = PROGRAM.parents[1]


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(PROGRAM), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(children, seconds=300):
    """What each child found; a collective that hangs must not hang the suite."""
    found = []
    try:
        for child in children:
            out, err = child.communicate(timeout=seconds)
            assert child.returncode == 0, err
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for child in children:
            child.kill()
            child.wait()
    return found


def test_eight_devices_have_the_bits_of_one():
    (found,) = finish([start("ops")])
    assert {name for name, right in found.items() if not right} == set()
    for count in (1, 2, 4, 8):
        assert sum(name.endswith(f" {count} parts") for name in found) == 42


needs_bench = pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="needs the bench folder")


@needs_bench
def test_a_training_step_in_eight_parts():
    pytest.importorskip("optax")
    (found,) = finish([start("step")])
    assert set(found) >= {"loss", "gradients", "step, run to run"}
    assert {name for name, right in found.items() if not right} == set()


@needs_bench
def test_two_processes_with_four_devices_each():
    pytest.importorskip("optax")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    both = finish([start("process", k, port) for k in (0, 1)])
    assert {"loss", "gradients", *both[1]} == set(both[0])
    assert len(both[1]) > 12
    for found in both:
        assert {name for name, right in found.items() if not right} == set()


# --- Layout -------------------------------------------------------------------------------------


def ring(n):
    return np.arange(n), (np.arange(n) + 1) % n


def test_rounds_are_permutations_with_little_padding(rng):
    n = 400
    senders = rng.integers(0, n, 3000)
    receivers = (senders + rng.integers(-9, 10, 3000)) % n
    graph = jax_index.Graph(senders, receivers, num_senders=n, num_receivers=n)
    given = {"node_parts": "contiguous"}
    parts = jax_index.partition(graph, 16, exchange="rounds", **given)
    other = jax_index.partition(graph, 16, **given)
    for rounds in parts.routes:
        pairs = [pair for _, round_pairs in rounds for pair in round_pairs]
        assert len(pairs) == len(set(pairs))
        for _, round_pairs in rounds:
            for end in zip(*round_pairs, strict=True):
                assert len(set(end)) == len(end)
    counts = ("rows", "nodes", "edges", "halo", "cut_edges", "neighbours")
    assert all(parts.report[name] == other.report[name] for name in counts)
    for name, rows in parts.report["rows"].items():
        assert rows <= parts.report["padded"][name] <= 1.5 * rows
        assert other.report["padded"][name] > 4 * rows
    # Two would be enough between neighbours in a ring.
    assert 2 <= parts.report["rounds"] == len(parts.routes.near) <= 3
    assert other.report["rounds"] == 1
    assert other.routes is None


@pytest.mark.parametrize("num_parts", [1, 3, 5])
def test_parts_hold_every_node_and_edge_once(rng, num_parts):
    n, m = 37, 150
    ends = rng.integers(-1, n, (2, m))
    graph = jax_index.Graph(*ends, num_senders=n, num_receivers=n, mode="drop")
    parts = jax_index.partition(graph, num_parts)
    kept = np.flatnonzero((ends >= 0).all(axis=0))
    for half, mine, other in ((parts.near, ends[1], ends[0]), (parts.far, ends[0], ends[1])):
        rows, edges = np.asarray(half.row_ids), np.asarray(half.edge_ids)
        assert sorted(rows[rows >= 0]) == list(range(n))
        assert sorted(edges[edges >= 0]) == list(kept)
        for p in range(num_parts):
            own = edges[p][edges[p] >= 0]
            assert (np.diff(own) > 0).all(), "the caller's order"
            assert (parts.node_parts[mine[own]] == p).all()
            local = np.asarray(half.graph.receivers.ids)[p][: len(own)]
            assert (rows[p][local] == mine[own]).all()
            # The other end stands in its own block, or in the slot that its owner fills.
            place = np.asarray(half.graph.senders.ids)[p][: len(own)]
            there = np.asarray((parts.far if half is parts.near else parts.near).row_ids)
            size = there.shape[1]
            send = np.asarray(half.send.ids)
            slots = send.shape[1] // num_parts
            for at, node in zip(place, other[own], strict=True):
                if at < size:
                    assert there[p][at] == node
                else:
                    q, k = divmod(at - size, slots)
                    assert there[q][send[q][p * slots + k]] == node
    found = parts.report
    assert found["edges"]["total"] == len(kept)
    assert found["nodes"]["total"] == n
    owner = parts.node_parts
    cut = {e for e in kept if owner[ends[0][e]] != owner[ends[1][e]]}
    assert found["cut_edges"] == found["rows"]["exact_unfused"] == len(cut)
    pairs = lambda a, b: {(ends[a][e], owner[ends[b][e]]) for e in cut}  # noqa: E731
    assert found["rows"]["forward"] == found["halo"]["total"] == len(pairs(0, 1))
    assert found["rows"]["exact_fused"] == len(pairs(1, 0))
    assert json.loads(json.dumps(found)) == found


def test_owners_by_bisection_are_balanced_and_near():
    side = 24
    node = np.arange(side * side).reshape(side, side)
    ends = np.concatenate(
        [np.stack([node[:, :-1].ravel(), node[:, 1:].ravel()]),
         np.stack([node[:-1].ravel(), node[1:].ravel()])], axis=1,
    )  # fmt: skip
    shuffled = np.random.default_rng(0).permutation(side * side)
    weights = np.ones(side * side)
    for num_parts in (2, 6, 16):
        owner = _blocks.bisected(shuffled[ends], weights, num_parts)
        count = np.bincount(owner, minlength=num_parts)
        assert count.max() <= np.ceil(side * side / num_parts) + 2, count
        cut = (owner[shuffled[ends[0]]] != owner[shuffled[ends[1]]]).mean()
        # Squares cut (√num_parts - 1) / side of the edges, a random owner 1 - 1 / num_parts.
        assert cut < 2 * (np.sqrt(num_parts) - 0.6) / side, cut
    # Components, isolated nodes, and more parts than nodes.
    owner = _blocks.bisected(np.array([[0, 2], [1, 3]]), np.ones(7), 8)
    assert (np.bincount(owner, minlength=8) <= 1).all()
    assert _blocks.bisected(np.zeros((2, 0), np.int64), np.ones(0), 3).size == 0
    assert _blocks.contiguous(np.ones(7), 3).tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_another_graph_takes_the_owners_of_the_first(rng):
    graph = jax_index.Graph(*ring(12), num_senders=12, num_receivers=12)
    other = jax_index.Graph(*rng.integers(0, 12, (2, 30)), num_senders=12, num_receivers=12)
    first = jax_index.partition(graph, 4)
    second = jax_index.partition(other, 4, node_parts=first.node_parts)
    assert np.array_equal(first.near.row_ids, second.near.row_ids)
    x = rng.standard_normal((12, 2)).astype(np.float32)
    assert np.array_equal(second.join(first.split(x)), x)
    y = np.arange(30, dtype=np.int32)
    assert np.array_equal(second.join(second.split(y, "edges"), "edges"), y)
    leaves, form = jax.tree.flatten(second)
    rebuilt = jax.tree.unflatten(form, leaves)
    assert np.array_equal(rebuilt.split(x), second.split(x))
    assert repr(rebuilt) == "Partition(num_parts=4, num_senders=12, num_receivers=12, num_edges=30)"


# --- Errors -------------------------------------------------------------------------------------

GRAPH = jax_index.Graph(*ring(6), num_senders=6, num_receivers=6)
MESH = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:1])
ONE = NamedSharding(MESH, P("d"))

CALLS = [
    (lambda: jax_index.partition([0, 1], 2), TypeError,
     "jax_index.partition: graph must be a Graph, got an object of type list. Make one with "),
    (lambda: jax_index.partition(GRAPH, 0), ValueError,
     "jax_index.partition: num_parts must be 1 or more, got 0."),
    (lambda: jax_index.partition(GRAPH, 2, node_parts="metis"), ValueError,
     "jax_index.partition: node_parts must be None, 'bisect' or 'contiguous', got 'metis'."),
    (lambda: jax_index.partition(GRAPH, 2, node_parts=[0, 1]), ValueError,
     "jax_index.partition: node_parts must be 6 integers, got 2."),
    (lambda: jax_index.partition(GRAPH, 2, node_parts=[0, 1, 0, 2, 0, 0]), ValueError,
     "jax_index.partition: node_parts must be in [0, 2), got node_parts[3] = 2."),
    (lambda: jax_index.partition(GRAPH, 2, node_parts=[0.0] * 6), TypeError,
     "jax_index.partition: node_parts must be "),
    (lambda: jax_index.partition(GRAPH, 2, exchange="ring"), ValueError,
     "jax_index.partition: exchange must be 'all_to_all' or 'rounds', got 'ring'. Rounds pay "),
    (lambda: jax_index.partition(GRAPH, 2, sharding=P("d")), TypeError,
     "jax_index.partition: sharding must be None or a NamedSharding, got "),
    (lambda: jax_index.partition(GRAPH, 2, sharding=ONE), ValueError,
     "jax_index.partition: sharding must be of one axis with 2 devices, one for each part, got "),
    (lambda: jax.jit(lambda g: jax_index.partition(g, 2))(GRAPH), TypeError,
     "jax_index.partition: graph.senders must be concrete, got "),
    (lambda: jax_index.partition(GRAPH, 2).split(np.ones(6), "rows"), ValueError,
     "jax_index.Partition.split: kind must be one of ('nodes', 'senders', 'receivers', 'edges'), "),
    (lambda: jax_index.partition(GRAPH, 2).split(np.ones(5)), ValueError,
     "jax_index.Partition.split: x must be an array with 6 entries on axis 0 (one for each "),
    (lambda: jax_index.partition(GRAPH, 2).join(np.ones((2, 1))), ValueError,
     "jax_index.Partition.join: y must be an array of shape [2, 3, ...], got shape (2, 1)."),
    (lambda: jax_index.partition(GRAPH, 2).local("d"), ValueError,
     "jax_index.Partition.local: axis_name must be the name of a mesh axis, got 'd'. Call it "),
    (lambda: jax_index.partition(GRAPH, 1).local("d", grad="sum"), ValueError,
     "jax_index.Partition.local: grad must be 'exact' or 'halo', got 'sum'."),
    (lambda: jax.tree.map(lambda v: v, jax_index.partition(GRAPH, 1)).report, ValueError,
     "jax_index.Partition.report: self must be as partition made it, got a Partition rebuilt "),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), CALLS)
def test_errors(call, kind, text):
    with pytest.raises(kind, match=f"^{re.escape(text)}"):
        call()


INSIDE = [
    (lambda p, x: p.spmm(x[:3]), "GraphPart.spmm: x must be an array with 6 entries on axis 0"),
    (lambda p, x: p.spmm(x, jnp.ones(5)), "GraphPart.spmm: weights must be an array with 6 ent"),
    (lambda p, x: p.sddmm(x, x[:, :1]), "GraphPart.sddmm: y must be an array of x's shape"),
    (lambda p, x: p.gather(x[0, 0]), "GraphPart.gather: x must be an array of at least one axis"),
    (lambda p, x: p.scatter_add(x[:2]), "GraphPart.scatter_add: y must be an array with 6 ent"),
    (lambda p, x: p.graph_attention(x, x, x), "GraphPart.graph_attention: q must be a float ar"),
    (lambda p, x: p.gat_attention(x[:, None], x[:, None], jnp.ones(3)),
     "GraphPart.gat_attention: att must be a float array of shape (2, 1, 2)"),
    (lambda p, x: p.exchange(x[:1]), "GraphPart.exchange: x must be an array with 6 entries"),
    (lambda p, x: p.transpose_edges(x[:1]), "GraphPart.transpose_edges: y must be an array wit"),
]  # fmt: skip


def in_part(fun, parts, *arrays, spec=None):
    inside = lambda parts, *a: fun(parts.local("d"), *(v[0] for v in a))[None]  # noqa: E731
    specs = spec if spec is not None else (P("d"),) * (1 + len(arrays))
    run = jax.shard_map(inside, mesh=MESH, in_specs=specs, out_specs=P("d"))
    return jax.jit(run)(parts, *arrays)


@pytest.mark.parametrize(("fun", "text"), INSIDE)
def test_errors_inside(fun, text):
    parts = jax_index.partition(GRAPH, 1, sharding=ONE)
    x = parts.split(np.ones((6, 2), np.float32))
    with pytest.raises(ValueError, match=f"^{re.escape('jax_index.' + text)}"):
        in_part(fun, parts, x)


def test_parts_must_be_as_many_as_devices_and_sharded():
    two = jax_index.partition(GRAPH, 2)
    with pytest.raises(ValueError, match="axis_name must be an axis with 2 devices, one for each"):
        in_part(lambda p: p.graph.senders.ids, two)
    whole = jax_index.partition(GRAPH, 1)
    flat = jax.tree.map(lambda leaf: leaf[0], whole)
    with pytest.raises(ValueError, match="self must be one part, arrays with a first axis of 1"):
        in_part(lambda p: p.graph.senders.ids, flat, spec=(P(),))


def test_one_part_is_the_whole_graph(rng):
    parts = jax_index.partition(GRAPH, 1, sharding=ONE)
    x = rng.standard_normal((6, 2)).astype(np.float32)
    run = lambda fun: parts.join(in_part(fun, parts, parts.split(x)))  # noqa: E731
    want = np.asarray(jax_index.spmm(GRAPH, x))
    assert np.array_equal(run(lambda p, v: p.spmm(v)), want)
    # The transposed part and back; ops of one's own on the exchanged rows.
    want = np.asarray(jax_index.spmm(GRAPH.T, x))
    assert np.array_equal(run(lambda p, v: p.T.spmm(v)), want)
    assert np.array_equal(
        run(lambda p, v: jax_index.spmm(p.graph, p.exchange(v))), x[[5, *range(5)]]
    )
    assert np.array_equal(run(lambda p, v: p.T.transpose_edges(p.transpose_edges(v))), x)
    keys = jax.random.split(jax.random.key(0), 6)
    with pytest.raises(TypeError, match="x must be of a dtype that devices exchange"):
        in_part(lambda p, k: p.gather(jax.random.wrap_key_data(k)), parts,
                parts.split(np.asarray(jax.random.key_data(keys))))  # fmt: skip
