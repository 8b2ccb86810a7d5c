# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Graphs in parts, against the same graph in one piece. Started by test_partition.py.

`ops`: eight CPU devices of one process. `step`: a training step there. `process ID PORT`: one of
two processes with four devices each.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from pathlib import Path

os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={4 if sys.argv[2:] else 8} "
    "--xla_backend_optimization_level=0"  # XLA's own code; it compiles in half the time
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index

N, M, H, D = 203, 3200, 2, 3


class Whole:
    """The whole graph with the methods of a part."""

    def __init__(self, graph):
        self.graph, self.receivers = graph, graph.receivers
        for name in ("spmm", "sddmm", "graph_attention", "gat_attention"):
            setattr(self, name, functools.partial(getattr(jax_index, name), graph))

    def gather(self, x):
        return jax_index.gather(x, self.graph.senders)

    def scatter_add(self, y):
        return jax_index.scatter_add(y, self.graph.senders)


def attention_of_sums(part, q, k, weights):
    return part.graph_attention(
        q, k, k, score_weights=weights, clip=(-1, 1), normalize="sum", denominator_offset=0.5
    )


def twice(part, x, w, ct):
    """The derivative of spmm, as a function of what it is taken at."""
    return jax.vjp(part.spmm, x, w)[1](ct)


NODES, EDGES, ROWS, SHARED = "nodes", "edges", "rows of edges", "shared"
SHAPES = {NODES: (N, H, D), EDGES: (M, H), ROWS: (M, H, D), SHARED: (2, H, D)}
SPECS = {NODES: P("d"), EDGES: P("d"), ROWS: P("d"), SHARED: P()}
# name: function, what its arguments stand for, what its results do
CASES = {
    "spmm": (lambda p, x: p.spmm(x), [NODES], [NODES]),
    "weighted": (lambda p, x, w: p.spmm(x, w), [NODES, EDGES], [NODES]),
    "bfloat16": (lambda p, x: p.spmm(x.astype("bfloat16")), [NODES], [NODES]),
    "sddmm": (lambda p, x, y: p.sddmm(x, y), [NODES, NODES], [EDGES]),
    "gather": (lambda p, x: p.gather(x), [NODES], [ROWS]),
    "scatter_add": (lambda p, y: p.scatter_add(y), [ROWS], [NODES]),
    "segment_sum": (lambda p, y: jax_index.segment_sum(y, p.receivers), [ROWS], [NODES]),
    "softmax": (lambda p, y: jax_index.edge_softmax(p.graph, y), [EDGES], [EDGES]),
    "attention": (
        lambda p, q, k, v, b, c: p.graph_attention(q, k, v, bias=b, weights=c),
        [NODES, NODES, NODES, EDGES, EDGES],
        [NODES],
    ),
    "attention of sums": (attention_of_sums, [NODES, NODES, EDGES], [NODES]),
    "gat": (lambda p, x, y, a: p.gat_attention(x, y, a), [NODES, NODES, SHARED], [NODES]),
    "gatv2": (
        lambda p, x, y, a, w: p.gat_attention(x, y, a[0], version=2, weights=w),
        [NODES, NODES, SHARED, EDGES],
        [NODES],
    ),
    "twice": (twice, [NODES, EDGES, NODES], [NODES, EDGES]),
}


def network(rng):
    """Hubs beyond a thousand edges on both sides, self loops, dropped edges, isolated nodes."""
    senders, receivers = rng.integers(0, N - 6, (2, M))
    receivers[rng.random(M) < 0.4] = 17
    senders[rng.random(M) < 0.4] = 90
    senders[:20] = receivers[:20]
    senders[40:44], receivers[43:50] = -1, N
    graph = jax_index.Graph(senders, receivers, num_senders=N, num_receivers=N, mode="drop")
    lengths = [
        int(np.diff(np.asarray(plan.indptr)).max()) for plan in (graph.senders, graph.T.senders)
    ]
    assert min(lengths) > 1024, lengths
    return graph


def operands(rng, kinds):
    return [rng.standard_normal(SHAPES[kind]).astype(np.float32) for kind in kinds]


def both_ways(fun, args, cts):
    """The results, and the cotangents of all arguments."""
    out, pull = jax.vjp(fun, *args)
    one = not isinstance(out, tuple)
    cts = [ct.astype(o.dtype) for ct, o in zip(cts, [out] if one else out, strict=True)]
    return [out] if one else list(out), list(pull(cts[0] if one else tuple(cts)))


def make_mesh(count, kind=AxisType.Auto):
    return jax.make_mesh((count,), ("d",), axis_types=(kind,), devices=jax.devices()[:count])


def lay(parts, value, kind):
    """An array of the whole graph by parts."""
    return value if kind == SHARED else parts.split(value, NODES if kind == NODES else EDGES)


def by_parts(program, mesh, specs, out_specs, grad="exact"):
    """program(part, data), data with a first axis of one part where its spec says so."""

    def inside(parts, data):
        own = jax.tree.map(lambda v, spec: v[0] if spec else v, data, specs)
        out = program(parts.local("d", grad=grad), own)
        return jax.tree.map(lambda v, spec: v[None] if spec else v, out, out_specs)

    return jax.jit(jax.shard_map(inside, mesh=mesh, in_specs=(P("d"), specs), out_specs=out_specs))


def calls(text):
    """Count the collectives of a compiled program."""
    return len(re.findall(r" all-to-all(?:-start)?\(", text)), len(
        re.findall(
            r" (?:all-reduce|all-gather|collective-permute|reduce-scatter)(?:-start)?\(", text
        )
    )


def same(actual, expected):
    actual, expected = (np.asarray(v) for v in (actual, expected))
    return actual.dtype == expected.dtype and actual.tobytes() == expected.tobytes()


def close(actual, expected, tolerance=1e-5):
    actual, expected = (np.asarray(v, np.float64) for v in (actual, expected))
    return bool(np.abs(actual - expected).max() <= tolerance * np.abs(expected).max())


def check_ops(found):
    rng = np.random.default_rng(0)
    graph = network(rng)
    specs = {
        name: ([SPECS[kind] for kind in ins], [SPECS[kind] for kind in outs])
        for name, (_, ins, outs) in CASES.items()
    }
    out_specs = {name: (spec[1], spec[0]) for name, spec in specs.items()}
    given = {
        name: (operands(rng, ins), operands(rng, outs)) for name, (_, ins, outs) in CASES.items()
    }

    def program(part, data):
        return {
            name: both_ways(functools.partial(CASES[name][0], part), *data[name]) for name in data
        }

    expected = jax.device_get(program(Whole(graph), given))
    for count in (1, 2, 4, 8):
        mesh = make_mesh(count)
        parts = jax_index.partition(graph, count, sharding=NamedSharding(mesh, P("d")))
        data = {
            name: tuple(
                [lay(parts, v, kind) for v, kind in zip(values, kinds, strict=True)]
                for values, kinds in zip(given[name], case[1:], strict=True)
            )
            for name, case in CASES.items()
        }
        compiled = by_parts(program, mesh, specs, out_specs).lower(parts, data).compile()
        results = compiled(parts, data)
        if count == 8:
            check_exchanges(found, compiled.as_text(), parts, specs, data, mesh)
        for name, (_, ins, outs) in CASES.items():
            for what, kinds, got, want in zip(
                ("result", "gradient"), (outs, ins), results[name], expected[name], strict=True
            ):
                for k, (kind, g, w) in enumerate(zip(kinds, got, want, strict=True)):
                    label = f"{name}, {what} {k}, {count} parts"
                    if kind == SHARED:  # JAX adds it over devices
                        found[label] = close(g, w)
                    else:
                        g = parts.join(g, NODES if kind == NODES else EDGES)
                        found[label] = same(g, w) and bool(w.astype(bool).any())


# name: all_to_alls of the forward pass, and of both passes
EXCHANGES = {
    "spmm": (1, 2),
    "weighted": (1, 3),  # backward the rows of receivers, and the weights of cut edges
    "bfloat16": (1, 2),
    "sddmm": (1, 3),
    "gather": (1, 2),
    "scatter_add": (1, 2),
    "segment_sum": (0, 0),
    "softmax": (0, 0),
    "attention": (1, 3),  # queries and cotangents in one, two numbers of cut edges in the other
    "attention of sums": (1, 3),
    "gat": (1, 4),
    "gatv2": (1, 5),
    "twice": (3, 8),
}


def check_exchanges(found, text, parts, specs, data, mesh):
    """Compare the collectives of all cases together, and each case's own as JAX wrote them."""
    # XLA sees that one set of weights is sent twice. What all parts share has sums over devices,
    # which it may combine.
    moves, others = calls(text)
    found["all exchanges"] = moves == sum(both for _, both in EXCHANGES.values()) - 1
    found["no other collective"] = others <= sum(SHARED in ins for _, ins, _ in CASES.values())
    for name, (forward, both) in EXCHANGES.items():
        fun, of_args, of_cts = CASES[name][0], *specs[name]
        run = by_parts(
            lambda p, args, fun=fun: fun(p, *args),
            mesh,
            of_args,
            of_cts[0] if len(of_cts) == 1 else tuple(of_cts),
        )
        lowered = run.lower(parts, data[name][0]).as_text()
        found[f"{name}, {forward} exchange forward"] = exchanges(lowered) == forward
        run = by_parts(
            lambda p, args, fun=fun: both_ways(functools.partial(fun, p), *args),
            mesh,
            specs[name],
            specs[name][::-1],
        )
        found[f"{name}, {both} exchanges"] = (
            exchanges(run.lower(parts, data[name]).as_text()) == both
        )


def exchanges(text):
    return text.count("stablehlo.all_to_all")


def check_halo(found):
    """Partial sums: as near as the order of sums allows, and by one exchange each way."""
    rng = np.random.default_rng(2)
    graph, mesh = network(rng), make_mesh(4)
    parts = jax_index.partition(
        graph, 4, node_parts="contiguous", sharding=NamedSharding(mesh, P("d"))
    )
    for name in ("weighted", "gather", "attention", "gatv2"):
        fun, ins, outs = CASES[name]
        args, cts = operands(rng, ins), operands(rng, outs)
        want = both_ways(functools.partial(fun, Whole(graph)), args, cts)
        given = tuple(
            [lay(parts, v, k) for v, k in zip(values, kinds, strict=True)]
            for values, kinds in ((args, ins), (cts, outs))
        )
        of_args, of_cts = ([SPECS[kind] for kind in kinds] for kinds in (ins, outs))
        run = by_parts(
            lambda p, data, fun=fun: both_ways(functools.partial(fun, p), *data),
            mesh,
            (of_args, of_cts),
            (of_cts, of_args),
            grad="halo",
        )
        got = run(parts, given)
        for k, (kind, g, w) in enumerate(
            zip([*outs, *ins], [*got[0], *got[1]], [*want[0], *want[1]], strict=True)
        ):
            g = g if kind == SHARED else parts.join(g, NODES if kind == NODES else EDGES)
            found[f"{name} by partial sums, {k}"] = close(g, w)
        moves = exchanges(run.lower(parts, given).as_text())
        # Keys and values are exchanged apart there.
        found[f"{name} by partial sums, exchanges"] = moves == (4 if name == "attention" else 2)


def check_rounds(found):
    """The same bits by permutations in place of an all_to_all; and their partial sums."""
    rng = np.random.default_rng(5)
    graph, mesh = network(rng), make_mesh(8)
    parts = jax_index.partition(graph, 8, exchange="rounds", sharding=NamedSharding(mesh, P("d")))
    for name, grad in (("weighted", "exact"), ("gather", "exact"), ("weighted", "halo")):
        fun, ins, outs = CASES[name]
        args, cts = operands(rng, ins), operands(rng, outs)
        want = both_ways(functools.partial(fun, Whole(graph)), args, cts)
        given = tuple(
            [lay(parts, v, k) for v, k in zip(values, kinds, strict=True)]
            for values, kinds in ((args, ins), (cts, outs))
        )
        specs = tuple([SPECS[kind] for kind in kinds] for kinds in (ins, outs))
        run = by_parts(
            lambda p, data, fun=fun: both_ways(functools.partial(fun, p), *data),
            mesh,
            specs,
            specs[::-1],
            grad=grad,
        )
        text = run.lower(parts, given).as_text()
        found[f"{name} in rounds, {grad}, no all_to_all"] = exchanges(text) == 0
        got = run(parts, given)
        judge = same if grad == "exact" else close
        for k, (kind, g, w) in enumerate(
            zip([*outs, *ins], [*got[0], *got[1]], [*want[0], *want[1]], strict=True)
        ):
            g = parts.join(g, NODES if kind == NODES else EDGES)
            found[f"{name} in rounds, {grad}, {k}"] = bool(judge(g, w))


def check_bipartite(found):
    """Nodes of two kinds; owners that are given; a part that owns nothing; an explicit mesh."""
    rng = np.random.default_rng(3)
    counts, m = (23, 9), 120
    ends = [rng.integers(-1, n, m) for n in counts]
    graph = jax_index.Graph(*ends, num_senders=23, num_receivers=9, mode="drop")
    x, y, ct = (rng.standard_normal((n, 2, 4)).astype(np.float32) for n in (23, 9, 9))
    fun = lambda p, x, y: p.graph_attention(y, x, x)
    want = both_ways(functools.partial(fun, Whole(graph)), [x, y], [ct])
    given = rng.integers(0, 3, 23), rng.integers(1, 4, 9)
    for owners, kind in ((None, AxisType.Auto), (given, AxisType.Explicit)):
        mesh = make_mesh(4, kind)
        parts = jax_index.partition(
            graph, 4, node_parts=owners, sharding=NamedSharding(mesh, P("d"))
        )
        specs = [P("d")] * 2, [P("d")]
        run = by_parts(
            lambda p, data: both_ways(functools.partial(fun, p), *data), mesh, specs, specs[::-1]
        )
        # On the host, and on the devices.
        for put in (np.asarray, jnp.asarray):
            a, b, c = (
                parts.split(put(v), side)
                for v, side in ((x, "senders"), (y, "receivers"), (ct, "receivers"))
            )
            out, (dx, dy) = run(parts, ([a, b], [c]))
            label = f"bipartite, {kind}, {put.__module__}"
            found[f"{label}, result"] = same(parts.join(out[0], "receivers"), want[0][0])
            found[f"{label}, senders"] = same(parts.join(dx, "senders"), want[1][0])
            found[f"{label}, receivers"] = same(parts.join(dy, "receivers"), want[1][1])


def check_step(found):
    """A training step of the main job in parts, against the step of one device."""
    # At the end, so that the installed package is taken and not the source tree.
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from bench.columns import COLUMNS, FUSED
    from bench.configurations import Source
    from bench.model import Batch, Variant
    from bench.partitioned import AXIS, make_parts, make_step, split_batch
    from bench.train import first_state, make_topology, train_step

    problem = Source("tiny", num_scenarios=4).problem(processes=1)
    # Away from the kinks of the loss, where a bit of rounding picks another branch.
    some = [1, 2]
    batch = Batch(problem.features[:, some], problem.flows[:, some], problem.net_demand[:, some])
    mesh = jax.make_mesh((8,), (AXIS,), axis_types=(AxisType.Auto,))
    parts = make_parts(problem, mesh)
    state = first_state(0, problem.features.shape[2])
    state = jax.device_put(jax.device_get(state), NamedSharding(mesh, P()))
    step = make_step(mesh, Variant())
    split = split_batch(parts, batch)
    first, again = (step(state, parts, split) for _ in range(2))
    read = lambda tree: jax.tree.map(lambda v: np.asarray(v.addressable_data(0)), tree)
    (_, loss, grads, ratio), (_, more_loss, more_grads, _) = first, again
    found["step, run to run"] = all(
        same(a, b)
        for a, b in zip(
            *(jax.tree.leaves(read(v)) for v in ((loss, grads), (more_loss, more_grads))),
            strict=True,
        )
    )
    joined = jax.jit(
        lambda parts, v: parts.road.join(v, "edges"), out_shardings=NamedSharding(mesh, P())
    )
    ratio = read(joined(parts, ratio))
    found["ratio"] = ratio.shape == (len(problem.senders), 2) and bool(np.isfinite(ratio).all())
    if jax.process_index() > 0:  # the other one knows the step of one device
        return
    ops = COLUMNS[FUSED].make_ops()
    whole = jax.jit(functools.partial(train_step, ops, Variant()))
    own = jax.device_put(jax.device_get(read(state)), jax.local_devices()[0])
    _, one_loss, one_grads = whole(own, make_topology(ops, problem), batch)
    found["loss"] = close(read(loss), one_loss, 1e-6)
    pairs = zip(*(jax.tree.leaves(v) for v in (read(grads), one_grads)), strict=True)
    found["gradients"] = all(close(a, b, 1e-4) for a, b in pairs)


def check_process(found):
    """Each process has four of the eight parts; the whole graph fits into it here."""
    jax.distributed.initialize(f"localhost:{sys.argv[3]}", 2, int(sys.argv[2]))
    found["devices"] = (jax.device_count(), jax.local_device_count()) == (8, 4)
    rng = np.random.default_rng(4)
    graph, mesh = network(rng), make_mesh(8)
    sharding = NamedSharding(mesh, P("d"))
    parts = jax_index.partition(graph, 8, sharding=sharding)
    names = ("weighted", "gather", "attention")
    specs = {name: tuple([SPECS[k] for k in kinds] for kinds in CASES[name][1:]) for name in names}
    given = {name: tuple(operands(rng, kinds) for kinds in CASES[name][1:]) for name in names}
    place = NamedSharding(mesh, P())
    data = {
        name: tuple(
            [
                jax.device_put(v, place) if kind == SHARED else lay(parts, v, kind)
                for v, kind in zip(values, kinds, strict=True)
            ]
            for values, kinds in zip(given[name], CASES[name][1:], strict=True)
        )
        for name in names
    }

    def program(part, data):
        return {
            name: both_ways(functools.partial(CASES[name][0], part), *data[name]) for name in data
        }

    out_specs = {name: (spec[1], spec[0]) for name, spec in specs.items()}
    results = by_parts(program, mesh, specs, out_specs)(parts, data)

    def whole(parts, results):
        return {
            name: [
                v if k == SHARED else parts.join(v, NODES if k == NODES else EDGES)
                for v, k in zip([*results[name][0], *results[name][1]], kinds, strict=True)
            ]
            for name, kinds in ((n, [*CASES[n][2], *CASES[n][1]]) for n in names)
        }

    got = jax.jit(whole, out_shardings=place)(parts, results)
    expected = jax.device_get(program(Whole(graph), given))
    for name in names:
        kinds = [*CASES[name][2], *CASES[name][1]]
        want = [*expected[name][0], *expected[name][1]]
        for k, (kind, g, w) in enumerate(zip(kinds, got[name], want, strict=True)):
            judge = close if kind == SHARED else same
            found[f"{name}, {k}"] = bool(judge(g.addressable_data(0), w))
    check_step(found)


def main():
    found = {}
    if sys.argv[1] == "process":
        check_process(found)
    elif sys.argv[1] == "step":
        check_step(found)
    else:
        check_ops(found)
        check_halo(found)
        check_rounds(found)
        check_bipartite(found)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
