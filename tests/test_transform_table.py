# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Every op under every transformation of JAX, against the plain call, to the bit.

One table without a hole: a function for each transformation, each of which takes any op.
"""

from __future__ import annotations

import functools
import pickle
import warnings
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jax_index
from jax_index import Graph

from . import oracle

M, NS, NR, H, D = 9, 4, 5, 2, 3
COUNT = 3  # entries of a batch, steps of a loop


class Op(NamedTuple):
    """f(topology, *arrays) and the shapes of the arrays; the topology is a plan or a graph."""

    call: Any
    shapes: tuple[tuple[int, ...], ...]
    graph: bool = False


def segment(name):
    op = getattr(jax_index, f"segment_{name}")
    return Op(lambda plan, data: op(data, plan), ((M, D),))


REDUCTIONS = ("sum", "mean", "max", "min", "prod", "var", "std", "softmax", "logsumexp")
SENT, RECEIVED = (NS, H, D), (NR, H, D)
OPS = {
    "gather": Op(lambda plan, x: jax_index.gather(x, plan), ((NR, D),)),
    "scatter_add": Op(lambda plan, y: jax_index.scatter_add(y, plan), ((M, D),)),
    "index_add": Op(lambda plan, x, y: jax_index.index_add(x, plan, y), ((NR, D), (M, D))),
    **{f"segment_{name}": segment(name) for name in REDUCTIONS},
    "spmm": Op(jax_index.spmm, (SENT, (M, H)), graph=True),
    "sddmm": Op(jax_index.sddmm, (SENT, RECEIVED), graph=True),
    "edge_softmax": Op(jax_index.edge_softmax, ((M, H),), graph=True),
    "graph_attention": Op(jax_index.graph_attention, (RECEIVED, SENT, SENT), graph=True),
    "gat_attention": Op(jax_index.gat_attention, (SENT, RECEIVED, (2, H, D)), graph=True),
    "gat_attention, version 2": Op(
        functools.partial(jax_index.gat_attention, version=2),
        (SENT, RECEIVED, (H, D)),
        graph=True,
    ),
}

# Each list drops an edge and leaves a row without edges.
ENDS = [
    ([0, 3, 3, -1, 1, 0, 3, 1, 0], [4, 0, 4, 1, 4, 0, 1, 1, 4]),
    ([1, 1, 0, 3, 1, -1, 0, 1, 3], [2, 2, 0, 0, 3, 3, 2, 0, 2]),
    ([3, 0, 1, 1, 0, 3, 3, 0, -1], [1, 1, 1, 1, 4, 1, 0, 4, 0]),
]


class Case:
    """Inputs of an op, COUNT of each, and what plain calls make of them."""

    def __init__(self, name):
        op = OPS[name]
        # A function of its own: what one transformation compiles, another may use.
        self.call = lambda topology, *arrays: op.call(topology, *arrays)
        rng = np.random.default_rng([ord(c) for c in name])
        self.topologies = []
        for senders, receivers in ENDS:
            sizes = {"num_senders": NS, "num_receivers": NR, "mode": "drop"}
            graph = Graph(senders, receivers, **sizes).generic
            self.topologies.append(graph if op.graph else graph.receivers)
        draw = lambda shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
        self.arrays = [[draw(shape) for shape in op.shapes] for _ in range(COUNT)]
        out = jax.eval_shape(self.call, self.topologies[0], *self.arrays[0])
        self.cts = [draw(out.shape) for _ in range(COUNT)]

    @functools.cached_property
    def both(self):
        """f(topology, arrays, cotangent): the result and the cotangents of the arrays."""

        def run(topology, arrays, ct):
            out, back = jax.vjp(lambda *a: self.call(topology, *a), *arrays)
            return out, back(ct)

        return run

    def first(self):
        return self.topologies[0], self.arrays[0], self.cts[0]

    @functools.cached_property
    def gradients(self):
        """The result and the cotangents of plain calls."""
        return tuple(np.asarray(v) for v in jax.tree.leaves(self.both(*self.first())))

    @functools.cached_property
    def results(self):
        """`results[i][j]`: of topology i and arrays j."""
        return [[np.asarray(self.call(t, *a)) for a in self.arrays] for t in self.topologies]

    def check(self, out, topology=0, arrays=0):
        oracle.assert_same(out, self.results[topology][arrays])

    def check_gradients(self, found):
        leaves = jax.tree.leaves(found)
        assert len(leaves) == len(self.gradients)
        for out, expected in zip(leaves, self.gradients, strict=True):
            oracle.assert_same(out, expected)


@functools.cache
def case_on(platform, name):
    return Case(name)


@pytest.fixture
def case(device, op):
    return case_on(device.platform, op)


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *trees)


def entry(tree, k):
    pick = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, k, keepdims=False)
    return jax.tree.map(pick, tree)


def copied(tree):
    return jax.tree.map(jnp.array, tree)


def here():
    """The platform of the default device, as lowerings call it."""
    return "cpu" if jnp.zeros(()).device.platform == "cpu" else "cuda"


def calls(fn, *arguments):
    """How often a traced function calls a primitive of this package, by name."""
    found = {}

    def look(jaxpr):
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            if name.startswith("jax_index_") and name != "jax_index_together":
                found[name] = found.get(name, 0) + 1
            for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
                if is_jaxpr(inner):
                    look(getattr(inner, "jaxpr", inner))

    look(jax.make_jaxpr(fn)(*arguments).jaxpr)
    return found


def is_jaxpr(value):
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


# --- The transformations --------------------------------------------------------------------------

TRANSFORMS = {}


def transform(fn):
    TRANSFORMS[fn.__name__] = fn
    return fn


@transform
def jit(case):
    fn = jax.jit(case.call)
    for k in range(2):
        case.check(fn(case.topologies[k], *case.arrays[k]), k, k)
    assert fn._cache_size() == 1


@transform
def grad(case):
    topology, arrays, ct = case.first()
    loss = lambda *a: (case.call(topology, *a) * ct).sum()
    found = jax.grad(loss, tuple(range(len(arrays))))(*arrays)
    case.check_gradients((case.results[0][0], found))


@transform
def value_and_grad(case):
    def loss(arrays, topology, ct):
        out = case.call(topology, *arrays)
        return (out * ct).sum(), out

    topology, arrays, ct = case.first()
    (_, out), found = jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays, topology, ct)
    case.check_gradients((out, found))


@transform
def vjp(case):
    case.check_gradients(jax.jit(case.both)(*case.first()))


@transform
def vmap_of_data(case):
    topology = case.topologies[0]
    out = jax.jit(jax.vmap(lambda a: case.call(topology, *a)))(stack(case.arrays))
    for k in range(COUNT):
        case.check(out[k], 0, k)


@transform
def vmap_of_plans(case):
    mapped = jax.vmap(lambda t: case.call(t, *case.arrays[0]))
    out = jax.jit(mapped)(stack(case.topologies))
    for k in range(COUNT):
        case.check(out[k], k, 0)


@transform
def nested_vmap(case):
    inner = jax.vmap(lambda t, a: case.call(t, *a), (None, 0))
    outer = jax.jit(jax.vmap(inner, (0, None)))
    topologies, arrays = stack(case.topologies), stack(case.arrays)
    out = outer(topologies, arrays)
    for i in range(COUNT):
        for j in range(COUNT):
            case.check(out[i, j], i, j)
    # However deep, a batch is one call of each kernel.
    single = calls(case.call, case.topologies[0], *case.arrays[0])
    assert calls(outer, topologies, arrays) == single


@transform
def scan(case):
    step = lambda count, given: (count + 1, case.call(given[0], *given[1]))
    run = jax.jit(lambda given: jax.lax.scan(step, 0, given))
    count, out = run((stack(case.topologies), stack(case.arrays)))
    assert count == COUNT
    for k in range(COUNT):
        case.check(out[k], k, k)


@transform
def while_loop(case):
    topologies, arrays = stack(case.topologies), stack(case.arrays)

    @jax.jit
    def run(topologies, arrays):
        def step(carry):
            k, outs = carry
            out = case.call(entry(topologies, k), *entry(arrays, k))
            return k + 1, jax.lax.dynamic_update_index_in_dim(outs, out, k, 0)

        start = jnp.zeros((COUNT, *case.cts[0].shape))
        return jax.lax.while_loop(lambda carry: carry[0] < COUNT, step, (0, start))[1]

    out = run(topologies, arrays)
    for k in range(COUNT):
        case.check(out[k], k, k)


@transform
def cond(case):
    @jax.jit
    def run(which, first, second, arrays):
        branch = lambda topology: lambda a: case.call(topology, *a)
        return jax.lax.cond(which, branch(first), branch(second), arrays)

    for k, which in enumerate((True, False)):
        case.check(run(which, *case.topologies[:2], case.arrays[1]), k, 1)


@transform
def map_(case):
    run = jax.jit(lambda given: jax.lax.map(lambda g: case.call(g[0], *g[1]), given))
    out = run((stack(case.topologies), stack(case.arrays)))
    for k in range(COUNT):
        case.check(out[k], k, k)


def remat(policy):
    """A checkpoint under a policy; what the op takes has a name and was computed (moved twice)."""

    def under(case):
        def layer(topology, arrays):
            named = [checkpoint_name(-a, "moved") for a in arrays]
            return case.call(topology, *(-a for a in named))

        def run(topology, arrays, ct):
            kept = jax.checkpoint(lambda a: layer(topology, a), policy=policy())
            out, back = jax.vjp(kept, arrays)
            return out, *back(ct)

        case.check_gradients(jax.jit(run)(*case.first()))

    return under


POLICIES = {
    "nothing_saveable": lambda: jax.checkpoint_policies.nothing_saveable,
    "everything_saveable": lambda: jax.checkpoint_policies.everything_saveable,
    "dots_saveable": lambda: jax.checkpoint_policies.dots_saveable,
    "save_only_these_names": lambda: jax.checkpoint_policies.save_only_these_names("moved"),
    "offload": lambda: jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["moved"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
}
TRANSFORMS |= {f"checkpoint, {name}": remat(policy) for name, policy in POLICIES.items()}


def shapes_of(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


@transform
def eval_shape(case):
    found = jax.eval_shape(case.both, *shapes_of(case.first()))
    leaves = jax.tree.leaves(found)
    assert [(v.shape, v.dtype) for v in leaves] == [(v.shape, v.dtype) for v in case.gradients]
    assert not any(v.weak_type for v in leaves)


@transform
def ahead_of_time(case):
    compiled = jax.jit(case.call).lower(*shapes_of((case.topologies[0], *case.arrays[0]))).compile()
    for k in range(COUNT):
        case.check(compiled(case.topologies[k], *case.arrays[k]), k, k)


@transform
def disable_jit(case):
    with jax.disable_jit():
        case.check_gradients(jax.jit(case.both)(*case.first()))


@transform
def debug_nans(case):
    not_numbers = [jnp.full_like(a, jnp.nan) for a in case.arrays[0]]
    with jax.debug_nans(True):
        case.check_gradients(case.both(*case.first()))
        # The check does look at our results.
        with pytest.raises(FloatingPointError):
            jax.block_until_ready(case.call(case.topologies[0], *not_numbers))


@transform
def donation(case):
    fn = jax.jit(lambda t, a: (case.call(t, *a), t), donate_argnums=(0, 1))
    # The plan of the last step is the next one's: a loop that donates what it carries.
    topology = copied(case.topologies[0])
    for k in range(2):
        arrays = copied(case.arrays[k])
        with warnings.catch_warnings():
            # Not every operand has the shape of a result.
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            out, again = fn(topology, arrays)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(topology))
        topology = again
        case.check(out, 0, k)
    assert topology == case.topologies[0]


@transform
def pickled(case):
    fn = jax.jit(case.call)
    case.check(fn(case.topologies[1], *case.arrays[0]), 1, 0)
    again, arrays = pickle.loads(pickle.dumps((case.topologies[1], case.arrays[0])))
    case.check(fn(again, *arrays), 1, 0)
    assert fn._cache_size() == 1


@transform
def export(case):
    allowed = jax_index.export_checks()
    exported = jax.export.export(jax.jit(case.both), platforms=[here()], disabled_checks=allowed)
    content = exported(*case.first()).serialize()
    case.check_gradients(jax.export.deserialize(content).call(*case.first()))


@transform
def x64(case):
    with oracle.x64():
        case.check_gradients(jax.jit(case.both)(*case.first()))
        topology = pickle.loads(pickle.dumps(case.topologies[0]))
        assert topology == case.topologies[0]
        wide = [a.astype(jnp.float64) for a in case.arrays[0]]
        out = case.call(topology, *wide)
        assert out.dtype == jnp.float64
        oracle.assert_same(jax.jit(case.call)(topology, *wide), out)
        np.testing.assert_allclose(out, case.results[0][0], rtol=2e-5, atol=2e-6)
    # And off again.
    case.check(case.call(case.topologies[0], *case.arrays[0]))


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("op", OPS)
def test_transformation(case, name):
    TRANSFORMS[name](case)


def test_the_table_has_every_op():
    functions = {
        name
        for name in jax_index.__all__
        if not isinstance(getattr(jax_index, name), type)
        and "Gradient:" in getattr(jax_index, name).__doc__
    }
    # Ops of a partition stand beside their unsharded twins in tests of their own.
    assert functions - {"partition"} == {name.split(",")[0] for name in OPS}
