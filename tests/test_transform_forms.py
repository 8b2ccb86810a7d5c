# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""The table of transformations, continued: further ones, and those of static plans and graphs."""

from __future__ import annotations

import functools
import pickle
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import serialize_executable

from jax_index import _ad

from . import oracle
from .test_transform_table import COUNT, OPS, TRANSFORMS, Case, calls, case_on, stack

FORMS = {}


def form(fn):
    FORMS[fn.__name__] = fn
    return fn


def at_the_end(trees):
    """Stack with the batch as the last axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves, -1), *trees)


@form
def vmap_of_last_axes(case):
    """Data carry the batch behind all other axes, plans too, and so does the result."""
    topology, arrays = case.topologies[0], at_the_end(case.arrays)
    out = jax.jit(jax.vmap(lambda a: case.call(topology, *a), -1, -1))(arrays)
    for k in range(COUNT):
        case.check(out[..., k], 0, k)
    both = jax.vmap(lambda t, a: case.call(t, *a), -1, -1)
    out = jax.jit(both)(at_the_end(case.topologies), arrays)
    for k in range(COUNT):
        case.check(out[..., k], k, k)
    single = calls(case.call, case.topologies[0], *case.arrays[0])
    assert calls(both, at_the_end(case.topologies), arrays) == single


@form
def vmap_of_gradients(case):
    """Of a batch of data, plans and cotangents: each entry has the bits of its own gradient."""
    over = jax.jit(jax.vmap(case.both))
    out = over(stack(case.topologies), stack(case.arrays), jnp.stack(case.cts))
    for k in range(COUNT):
        given = case.topologies[k], case.arrays[k], case.cts[k]
        for mapped, alone in zip(*map(jax.tree.leaves, (out, case.both(*given))), strict=True):
            oracle.assert_same(mapped[k], alone)


@form
def forward_mode(case):
    """The result is that of the default mode, and the tangent belongs to its gradient."""
    topology, arrays, ct = case.first()
    dots = [jnp.cos(a) for a in arrays]
    with _ad.any_mode():
        out, tangent = jax.jit(
            lambda arrays, dots: jax.jvp(lambda *a: case.call(topology, *a), arrays, dots)
        )(tuple(arrays), tuple(dots))
    case.check(out)
    along = [np.vdot(g, d) for g, d in zip(case.gradients[1:], dots, strict=True)]
    scale = sum(np.abs(g * d).sum() for g, d in zip(case.gradients[1:], dots, strict=True))
    assert np.any(np.asarray(tangent))
    np.testing.assert_allclose(np.vdot(ct, tangent), sum(along), atol=1e-5 * (1 + scale))


@form
def serialised(case):
    """A compiled program in bytes; the plan is its argument."""
    compiled = jax.jit(case.call).lower(case.topologies[0], *case.arrays[0]).compile()
    content, *trees = serialize_executable.serialize(compiled)
    trees = pickle.loads(pickle.dumps(trees))
    backend = jnp.zeros(()).device.platform
    again = serialize_executable.deserialize_and_load(content, *trees, backend=backend)
    for k in range(2):
        case.check(again(case.topologies[k], *case.arrays[k]), k, k)


@form
def threads(case):
    """Several at once, eager and jitted, first calls among them."""
    fn = jax.jit(lambda *given: case.call(*given))

    def work(k):
        topology, arrays = k % 2, k % COUNT
        for way in (fn, case.call):
            out = way(case.topologies[topology], *case.arrays[arrays])
            case.check(out, topology, arrays)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


@form
def jaxpr(case):
    """What is written down can be evaluated, and written down again."""
    traced = jax.make_jaxpr(case.both)(*case.first())
    run = jax.extend.core.jaxpr_as_fun(traced)
    leaves = jax.tree.leaves(case.first())
    again = jax.make_jaxpr(run)(*leaves)
    case.check_gradients(jax.jit(jax.extend.core.jaxpr_as_fun(again))(*leaves))


@form
def checked_for_leaks(case):
    with jax.checking_leaks():
        case.check_gradients(jax.jit(case.both)(*case.first()))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("op", OPS)
def test_transformation(device, op, name):
    FORMS[name](case_on(device.platform, op))


# --- Static plans and graphs ----------------------------------------------------------------------

# The others stack plans, count traces of plans of one size, or give their buffers away.
STATIC = ("vjp", "vmap_of_data", "cond", "checkpoint, nothing_saveable", "checkpoint, offload")
STATIC += ("disable_jit", "debug_nans", "export", "pickled")


class Static(Case):
    """A case whose topologies are static; the values are those of the plain ones."""

    def __init__(self, plain):
        self.__dict__.update(plain.__dict__)
        self.plain = plain
        self.call = lambda topology, *arrays: plain.call(topology, *arrays)
        self.topologies = [topology.static for topology in plain.topologies]

    results = property(lambda self: self.plain.results)
    gradients = property(lambda self: self.plain.gradients)


# `both` of the plain case is another function: what was traced of it is not used again.
Static.both = functools.cached_property(Case.both.func)
Static.both.__set_name__(Static, "static_both")


def scan_of_static_plans(case):
    """Closed over, carried and with a gradient: the loop's body names the arrays."""
    topology, arrays, ct = case.first()

    def run(topology, arrays, ct):
        step = lambda kept, _: (kept, case.both(kept, arrays, ct))
        return jax.lax.scan(step, topology, None, length=2)[1]

    out = jax.jit(run)(topology, arrays, ct)
    for k in range(2):
        case.check_gradients([leaf[k] for leaf in jax.tree.leaves(out)])


STATIC_TABLE = {name: TRANSFORMS[name] for name in STATIC}
STATIC_TABLE |= {"forward_mode": forward_mode, "threads": threads, "scan": scan_of_static_plans}


@pytest.mark.parametrize("name", STATIC_TABLE)
@pytest.mark.parametrize("op", OPS)
def test_transformation_of_static_plans(device, op, name):
    STATIC_TABLE[name](Static(case_on(device.platform, op)))


# --- Policies of checkpoints ----------------------------------------------------------------------

SAVED = jax.checkpoint_policies
MORE_POLICIES = {
    "dots_with_no_batch_dims_saveable": SAVED.dots_with_no_batch_dims_saveable,
    "save_anything_except_these_names": SAVED.save_anything_except_these_names("moved"),
    "save_any_names_but_these": SAVED.save_any_names_but_these("moved"),
    "save_from_both_policies": SAVED.save_from_both_policies(
        SAVED.dots_saveable, SAVED.save_only_these_names("moved")
    ),
    "offload_dot_with_no_batch_dims": SAVED.offload_dot_with_no_batch_dims("device", "pinned_host"),
}


@pytest.mark.parametrize("name", MORE_POLICIES)
@pytest.mark.parametrize("op", ["scatter_add", "segment_softmax", "graph_attention"])
def test_further_policies(device, op, name):
    case = case_on(device.platform, op)

    def layer(topology, arrays):
        named = [checkpoint_name(-a, "moved") for a in arrays]
        return case.call(topology, *(-a for a in named))

    def run(topology, arrays, ct):
        kept = jax.checkpoint(lambda a: layer(topology, a), policy=MORE_POLICIES[name])
        out, back = jax.vjp(kept, arrays)
        return out, *back(ct)

    case.check_gradients(jax.jit(run)(*case.first()))
