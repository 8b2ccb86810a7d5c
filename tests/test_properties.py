# SPDX-License-Identifier: Apache-2.0
"""Laws that hold for any ids, any shape and any element type."""

from __future__ import annotations

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings

import jax_index

from . import cases, oracle

# No database and no deadline: a run depends on the code and on pytest's options alone.
settings.register_profile(
    "here",
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=40,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
settings.load_profile("here")

# Few sizes, so that few programs are compiled; ids and values vary freely.
SIZES = st.sampled_from([(0, 0), (0, 3), (3, 0), (1, 1), (7, 3), (40, 4), (200, 2), (300, 90)])
WIDTHS = st.sampled_from([(), (1,), (5,), (0,), (2, 3)])
DTYPES = st.sampled_from(
    ["float32", "bfloat16", "float16", "int32", "uint8", "int4", "complex64", "float8_e4m3fn"]
)


@st.composite
def patterns(draw, dropped=True):
    """Ids and a number of rows: uniform, skewed, sorted or constant."""
    m, n = draw(SIZES)
    if n == 0 and not dropped:
        m = 0
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    low, high = (-2, n + 2) if dropped else (0, n)
    kind = draw(st.sampled_from(["uniform", "skewed", "sorted", "constant"]))
    ids = rng.integers(low, max(high, low + 1), m)
    if kind == "skewed":
        ids = np.where(rng.random(m) < 0.8, min(max(n - 1, low), 0), ids)
    elif kind == "sorted":
        ids = np.sort(ids)
    elif kind == "constant":
        ids = np.full(m, ids[0] if m else 0)
    if not dropped:
        ids = np.clip(ids, 0, max(n - 1, 0))
    return ids, n, rng


@given(patterns(), WIDTHS, DTYPES)
def test_ops_equal_the_oracle(pattern, width, dtype):
    ids, n, rng = pattern
    plan = jax_index.make_plan(ids, n, mode="drop")
    x, y = cases.values(rng, (n, *width), dtype), cases.values(rng, (ids.size, *width), dtype)
    taken = jax_index.gather(jnp.asarray(x), plan)
    summed = jax_index.scatter_add(jnp.asarray(y), plan)
    added = jax_index.index_add(jnp.asarray(x), plan, jnp.asarray(y))
    oracle.assert_same(taken, oracle.gather(x, ids))
    oracle.assert_same(summed, oracle.scatter_add(y, ids, n))
    oracle.assert_same(added, oracle.index_add(x, y, ids))


@given(patterns(), st.sampled_from(["int32", "float32", "complex64"]))
def test_adjoint(pattern, dtype):
    ids, n, rng = pattern
    plan = jax_index.make_plan(ids, n, mode="drop")
    x = cases.small_integers(rng, (n, 2), dtype)
    y = cases.small_integers(rng, (ids.size, 2), dtype)
    taken = np.asarray(jax_index.gather(jnp.asarray(x), plan))
    summed = np.asarray(jax_index.scatter_add(jnp.asarray(y), plan))
    assert (taken * y).sum() == (x * summed).sum()


@given(patterns())
def test_a_plan_lists_each_edge_once_by_row_in_order(pattern):
    ids, n, _ = pattern
    plan = jax_index.make_plan(ids, n, mode="drop")
    indptr, perm = np.asarray(plan.indptr), np.asarray(plan.perm)
    assert sorted(perm.tolist()) == list(range(ids.size))
    assert indptr[0] == 0
    for row in range(n):
        edges = perm[indptr[row] : indptr[row + 1]]
        assert (ids[edges] == row).all()
        assert (np.diff(edges) > 0).all()
    dropped = perm[indptr[n] :]
    assert (np.diff(dropped) > 0).all()
    assert (np.asarray(plan.ids)[dropped] == -1).all()


@given(patterns(), st.sampled_from(cases.ID_TYPES))
def test_the_type_of_the_ids_does_not_matter(pattern, dtype):
    ids, n, _ = pattern
    info = np.iinfo(dtype)
    assume(ids.size == 0 or (ids.min() >= info.min and ids.max() <= info.max))
    plan = jax_index.make_plan(ids, n, mode="drop")
    assert jax_index.make_plan(ids.astype(dtype), n, mode="drop") == plan
    assert jax_index.make_plan(ids.tolist(), n, mode="drop") == plan


@given(patterns())
def test_a_traced_plan_is_the_host_plan(pattern):
    ids, n, _ = pattern
    host = jax_index.make_plan(ids, n, mode="drop")
    traced = TRACED(jnp.asarray(ids, jnp.int32), n)
    for a, b in zip(jax.tree.leaves(host), jax.tree.leaves(traced), strict=True):
        np.testing.assert_array_equal(a, b)


TRACED = jax.jit(lambda ids, n: jax_index.make_plan(ids, n, mode="drop"), static_argnums=1)


@given(patterns(dropped=False))
def test_row_bounds_give_the_plan_of_the_sorted_ids(pattern):
    ids, n, _ = pattern
    bounds = np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=n)[:n])]).astype(int)
    assert jax_index.make_plan_from_indptr(bounds) == jax_index.make_plan(np.sort(ids), n)


@given(patterns())
def test_order_within_a_row_is_all_that_matters(pattern):
    """Edges may be mixed as long as each row sees its own in the same order: equal bits."""
    ids, n, rng = pattern
    y = cases.values(rng, (ids.size, 2), "float32")
    mixed = np.argsort(rng.random(ids.size))
    # Each row's places in the mixed order are filled with its edges in their first order.
    source = np.empty(ids.size, int)
    source[np.argsort(ids[mixed], kind="stable")] = np.argsort(ids, kind="stable")
    plan = jax_index.make_plan(ids, n, mode="drop")
    other = jax_index.make_plan(ids[mixed], n, mode="drop")
    first = jax_index.scatter_add(jnp.asarray(y), plan)
    second = jax_index.scatter_add(jnp.asarray(y[source]), other)
    oracle.assert_same(second, first)


@given(patterns(), st.integers(0, 3))
def test_the_gradient_of_a_linear_op_is_its_adjoint(pattern, seed):
    ids, n, rng = pattern
    plan = jax_index.make_plan(ids, n, mode="drop").generic
    x = jnp.asarray(cases.values(rng, (n,), "float32"))
    ct = jnp.asarray(cases.values(rng, (ids.size,), "float32"))
    (slope,) = jax.vjp(lambda v: jax_index.gather(v, plan), x)[1](ct)
    oracle.assert_same(slope, oracle.scatter_add(ct, ids, n))
    # The derivative of the derivative, with respect to the cotangent, is gather again.
    _, back = jax.vjp(lambda c: jax.vjp(lambda v: jax_index.gather(v, plan), x)[1](c)[0], ct)
    oracle.assert_same(back(x)[0], oracle.gather(x, ids))


@given(patterns(), st.integers(-3, 2))
def test_an_axis_is_a_transposition(pattern, axis):
    ids, n, rng = pattern
    plan = jax_index.make_plan(ids, n, mode="drop")
    x, y = cases.values(rng, (n, 2, 3), "float32"), cases.values(rng, (ids.size, 2, 3), "float32")
    there = lambda v: jnp.moveaxis(jnp.asarray(v), 0, axis)  # noqa: E731
    taken = jax_index.gather(there(x), plan, axis=axis)
    summed = jax_index.scatter_add(there(y), plan, axis=axis)
    oracle.assert_same(jnp.moveaxis(taken, axis, 0), oracle.gather(x, ids))
    oracle.assert_same(jnp.moveaxis(summed, axis, 0), oracle.scatter_add(y, ids, n))


@given(st.lists(st.integers(-(2**70), 2**70), max_size=8), st.integers(0, 5))
def test_any_integer_may_be_dropped_and_the_first_bad_one_is_named(ids, n):
    bad = [k for k, value in enumerate(ids) if not 0 <= value < n]
    plan = jax_index.make_plan(ids, n, mode="drop")
    assert plan.ids.tolist() == [v if 0 <= v < n else -1 for v in ids]
    if not bad:
        assert jax_index.make_plan(ids, n) == plan
        return
    with pytest.raises(IndexError) as refused:
        jax_index.make_plan(ids, n)
    assert f"got ids[{bad[0]}] = {ids[bad[0]]}. " in str(refused.value)
    assert f"(num_rows is {n})" in str(refused.value)
