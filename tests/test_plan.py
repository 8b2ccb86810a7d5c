# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""IndexPlan: what it holds, how it is built, copied, compared, stacked and misused."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import pickle
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index

from . import cases, oracle

GROUP = 1024
LONG_ROW = 128


def expected_arrays(ids, num_rows):
    """The documented arrays, by NumPy's stable sort."""
    ids = np.asarray(ids).astype(np.int64)
    kept = (ids >= 0) & (ids < num_rows)
    rows = np.where(kept, ids, num_rows)
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=num_rows + 1)[:num_rows], out=indptr[1:])
    return np.where(kept, ids, -1), indptr, np.argsort(rows, kind="stable")


def expected_tasks(indptr, num_edges):
    lengths = np.diff(indptr)
    found = []
    for giants in (True, False):
        for row, length in enumerate(lengths):
            if length > LONG_ROW and (length > GROUP) == giants:
                found += [(row, group) for group in range(-(-length // GROUP))]
    tasks = np.full((num_edges // (LONG_ROW + 1) + 1, 2), -1)
    tasks[: len(found)] = np.array(found).reshape(-1, 2)
    return tasks


def assert_holds(plan, ids, num_rows):
    row_of_edge, indptr, perm = expected_arrays(ids, num_rows)
    for leaf, expected in (
        (plan.ids, row_of_edge),
        (plan.indptr, indptr),
        (plan.perm, perm),
        (plan.tasks, expected_tasks(indptr, len(row_of_edge))),
    ):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == jnp.int32
        np.testing.assert_array_equal(leaf, expected)
    assert (plan.num_rows, plan.num_edges) == (num_rows, len(row_of_edge))


def assert_same_plan(plan, other):
    for name in ("ids", "indptr", "perm", "tasks"):
        np.testing.assert_array_equal(getattr(plan, name), getattr(other, name), err_msg=name)


@pytest.mark.parametrize("pattern", cases.PATTERNS)
def test_host_plan(device, pattern):
    ids, num_rows = cases.PATTERNS[pattern]
    plan = jax_index.make_plan(ids, num_rows, mode="drop")
    assert_holds(plan, ids, num_rows)
    _, indptr, perm = expected_arrays(ids, num_rows)
    assert plan.identity == bool((perm == np.arange(perm.size)).all())
    assert plan.no_long_row == bool((np.diff(indptr) <= LONG_ROW).all())
    assert (plan.generic.identity, plan.generic.no_long_row) == (False, False)
    assert_same_plan(plan, plan.generic)


@pytest.mark.parametrize("pattern", cases.PATTERNS)
def test_traced_plan(device, pattern):
    ids, num_rows = cases.PATTERNS[pattern]
    build = jax.jit(lambda i: jax_index.make_plan(i, num_rows, mode="drop"))
    plan = build(jnp.asarray(ids.astype(np.int32)))
    assert_holds(plan, ids, num_rows)
    assert (plan.identity, plan.no_long_row) == (False, False)


def test_a_large_plan_is_sorted_by_several_threads(rng):
    for num_rows, count in ((7, 600_000), (40_000, 600_000), (2_000_000, 300_000)):
        ids = rng.integers(-1, num_rows + 1, count)
        assert_holds(jax_index.make_plan(ids, num_rows, mode="drop"), ids, num_rows)
        assert jax_index.make_plan(np.sort(ids), num_rows, mode="drop").identity is False
        within = np.sort(np.clip(ids, 0, num_rows - 1))
        assert jax_index.make_plan(within, num_rows).identity
        # One inversion, wherever the threads' shares meet.
        swapped = within.copy()
        swapped[[count // 2, count // 2 - 1]] = [0, num_rows - 1]
        assert not jax_index.make_plan(swapped, num_rows).identity


def test_the_first_of_many_bad_ids_is_named(rng):
    ids = rng.integers(0, 50, 500_000)
    for first in (0, 3, 77_777, 250_000, 499_998):
        bad = ids.copy()
        bad[[first, 499_999]] = [60, -3]
        with pytest.raises(IndexError, match=rf"got ids\[{first}\] = 60\."):
            jax_index.make_plan(bad, 50)


@pytest.mark.parametrize("dtype", [*cases.ID_TYPES, *cases.SUB_BYTE])
def test_host_ids_of_every_integer_type(dtype):
    top = min(int(jnp.iinfo(dtype).max), 299)
    ids = np.array([top, 0, 1, top]).astype(dtype)
    expected = jax_index.make_plan([top, 0, 1, top], 300)
    for given in (ids, ids[::-1][::-1]):
        assert jax_index.make_plan(given, 300) == expected
    if ids.dtype.kind in "iu":
        assert jax_index.make_plan(ids.astype(ids.dtype.newbyteorder()), 300) == expected
    with oracle.x64_for(dtype):
        assert jax_index.make_plan(jnp.asarray(ids), 300) == expected


@pytest.mark.parametrize("dtype", [*cases.ID_TYPES, *cases.SUB_BYTE])
def test_traced_ids_of_every_integer_type(device, dtype):
    with oracle.x64_for(dtype):
        info = jnp.iinfo(dtype)
        low, high = int(info.min), int(info.max)
        wanted = [1, 0, min(high, 299), low, high, 1, min(high, 300)]
        store = np.int8 if dtype in cases.SUB_BYTE else dtype
        ids = jnp.asarray(np.array(wanted, store).astype(dtype))
        build = jax.jit(lambda i: jax_index.make_plan(i, 300, mode="drop"))
        assert_holds(build(ids), [min(max(i, -1), 300) for i in wanted], 300)


def test_batches_of_traced_ids_are_sorted_by_one_call(device, rng):
    """By the host's counting sort on a CPU, by XLA's sort elsewhere; hubs of several tasks."""
    ids = rng.integers(-1, 8, (2, 3, 3000))
    ids[1, :, :2500] = 5
    build = lambda i: jax_index.make_plan(i, 7, mode="drop")
    batched = jax.jit(jax.vmap(jax.vmap(build, in_axes=1, out_axes=1)))
    found = batched(jnp.asarray(ids.swapaxes(1, 2)))
    for k, j in np.ndindex(2, 3):
        plan = jax.tree.map(lambda leaf, k=k, j=j: leaf[k, :, j], found)
        assert_holds(plan, ids[k, j], 7)
    text = batched.lower(jnp.asarray(ids.swapaxes(1, 2))).as_text()
    calls = text.count("@jax_index.plan_of_ids("), text.count("stablehlo.sort")
    assert calls == ((1, 0) if device.platform == "cpu" else (0, 1))


@pytest.mark.parametrize("num_rows", [0, 1, 200, 2**31 - 1])
def test_narrow_traced_ids_are_compared_in_a_type_that_holds_the_rows(device, num_rows):
    if num_rows > 10**6:
        # The bounds of that many rows would take 8 GB: the shape is enough.
        build = lambda i: jax_index.make_plan(i, num_rows, mode="drop").ids
        assert jax.eval_shape(build, jnp.zeros(3, jnp.uint8)).shape == (3,)
        return
    for dtype in ("uint8", "int8"):
        ids = jnp.asarray([0, 100, 127]).astype(dtype)
        build = jax.jit(lambda i: jax_index.make_plan(i, num_rows, mode="drop").ids)
        expected = [i if i < num_rows else -1 for i in (0, 100, 127)]
        assert build(ids).tolist() == expected


def test_other_containers():
    expected = jax_index.make_plan(np.array([2, 0, 2]), 3)
    for given in ([2, 0, 2], (2, 0, 2), [np.int8(2), 0, np.uint64(2)], jnp.array([2, 0, 2])):
        assert jax_index.make_plan(given, 3) == expected
    assert jax_index.make_plan(range(3), 3) == jax_index.make_plan([0, 1, 2], 3)
    assert jax_index.make_plan(jnp.array([2, 0, 2]), jnp.int32(3)) == expected
    assert jax_index.make_plan([2, 0, 2], np.int64(3)) == expected
    for empty in ([], (), np.zeros(0, np.int8), jnp.zeros(0, jnp.int32)):
        assert jax_index.make_plan(empty, 3).indptr.tolist() == [0, 0, 0, 0]
        assert jax_index.make_plan(empty, 0).indptr.tolist() == [0]
    assert jax_index.make_plan([2**80, -(2**80), 1], 3, mode="drop").ids.tolist() == [-1, -1, 1]


def test_strided_and_read_only_ids():
    base = np.arange(20) % 5
    for view in (base[::2], base[::-3], base.reshape(4, 5)[:, 1]):
        assert_holds(jax_index.make_plan(view, 5), view, 5)
    base.flags.writeable = False
    assert_holds(jax_index.make_plan(base, 5), base, 5)


def test_ids_are_copied():
    ids = np.array([2, 0, 2], np.int32)
    plan = jax_index.make_plan(ids, 3)
    before = [np.array(leaf) for leaf in jax.tree.leaves(plan)]
    ids[:] = 1
    for leaf, kept in zip(jax.tree.leaves(plan), before, strict=True):
        np.testing.assert_array_equal(leaf, kept)
    bounds = np.array([0, 2, 3], np.int32)
    plan = jax_index.make_plan_from_indptr(bounds)
    bounds[:] = 0
    assert plan.indptr.tolist() == [0, 2, 3]
    assert plan.ids.tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "uint64"])
def test_plan_from_row_bounds(device, dtype):
    for bounds in ([0], [0, 0], [0, 3], [0, 0, 2, 2, 5, 5], [0, 120, 120, 127]):
        plan = jax_index.make_plan_from_indptr(np.array(bounds, dtype))
        ids = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        assert_holds(plan, ids, len(bounds) - 1)
        assert plan.identity
        assert plan == jax_index.make_plan(ids, len(bounds) - 1)
        assert plan == jax_index.make_plan_from_indptr(bounds)


def test_plan_from_row_bounds_with_long_rows():
    bounds = np.cumsum([0, 5000, 0, 129, 128, 1024, 1025])
    plan = jax_index.make_plan_from_indptr(bounds)
    assert_holds(plan, np.repeat(np.arange(6), np.diff(bounds)), 6)
    assert not plan.no_long_row


def test_equality_and_hash_are_by_content():
    plan = jax_index.make_plan([1, 0, 1, 5], 3, mode="drop")
    same = jax_index.make_plan(np.array([1, 0, 1, -9], np.int8), 3, mode="drop")
    assert plan == same == plan.generic
    assert hash(plan) == hash(same) == hash(plan.generic)
    assert len({plan, same, plan.generic}) == 1
    for other in (
        jax_index.make_plan([1, 0, 1, 2], 3),
        jax_index.make_plan([1, 0, 1, -1], 4, mode="drop"),
        jax_index.make_plan([1, 0, 1], 3),
        jax_index.make_plan([0, 1, 1, -1], 3, mode="drop"),
        "a plan",
        None,
    ):
        assert plan != other
    traced = jax.jit(lambda i: jax_index.make_plan(i, 3, mode="drop"))(jnp.array([1, 0, 1, 7]))
    assert traced == plan
    assert hash(traced) == hash(plan)


def test_the_digest_is_computed_once(monkeypatch):
    plan = jax_index.make_plan([1, 0], 2)
    first = hash(plan)
    monkeypatch.setattr(jax_index._plan, "content_digest", lambda *_: pytest.fail("again"))
    assert hash(plan) == first
    assert plan.digest == plan.digest


def test_copies():
    plan = jax_index.make_plan([1, 0, 1, 1], 3)
    hash(plan)
    for made in (copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
        assert made == plan
        assert hash(made) == hash(plan)
        assert_same_plan(made, plan)
        assert (made.identity, made.no_long_row) == (plan.identity, plan.no_long_row)
        out = jax_index.scatter_add(jnp.ones(4), made)
        assert out.tolist() == [1, 3, 0]
    holder = {"plan": plan, "again": plan}
    copied = copy.deepcopy(holder)
    assert copied["plan"] is copied["again"]
    assert pickle.loads(pickle.dumps(plan.generic)).no_long_row is False


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("pattern", ["random", "hubs", "sorted", "sorted, padded last", "no rows"])
def test_padded(pattern, where):
    ids, num_rows = cases.PATTERNS[pattern]
    plan = jax_index.make_plan(ids, num_rows, mode="drop")
    kept = np.where((ids >= 0) & (ids < num_rows), ids, -1)
    for edges, rows in ((0, 0), (0, 7), (1, 0), (700, 3)):
        sizes = ids.size + edges, num_rows + rows
        pad = lambda p, sizes=sizes: p.pad_to(*sizes)
        padded = pad(plan) if where == "host" else jax.jit(pad)(plan)
        assert_holds(padded, np.append(kept, np.full(edges, -1)), sizes[1])
        assert (padded.identity, padded.no_long_row) == (plan.identity, plan.no_long_row)
        if where == "host":
            assert not any(leaf.committed for leaf in jax.tree.leaves(padded))
    generic = plan.generic.pad_to(np.int64(ids.size + 1), jnp.int32(num_rows + 1))
    assert (generic.identity, generic.no_long_row) == (False, False)


def test_stacked_plans_are_padded_under_vmap():
    plans = [jax_index.make_plan(ids, 3).generic for ids in ([2, 0], [1, 1])]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *plans)
    padded = jax.vmap(lambda p: p.pad_to(3, 4))(stack)
    for k, ids in enumerate(([2, 0, -1], [1, 1, -1])):
        assert_holds(jax.tree.map(lambda leaf, k=k: leaf[k], padded), ids, 4)


def test_repr_and_size():
    plan = jax_index.make_plan([0, 0, 1], 2)
    assert repr(plan) == "IndexPlan(num_edges=3, num_rows=2, identity=True, no_long_row=True)"
    assert repr(plan.generic) == "IndexPlan(num_edges=3, num_rows=2)"
    ids, num_rows = cases.PATTERNS["hubs"]
    plan = jax_index.make_plan(ids, num_rows)
    assert plan.nbytes == sum(leaf.nbytes for leaf in jax.tree.leaves(plan))


def test_a_plan_is_a_pytree_with_small_static_metadata():
    plan = jax_index.make_plan([1, 0, 1], 2)
    leaves, tree = jax.tree.flatten(plan)
    assert [leaf.dtype for leaf in leaves] == [jnp.int32] * 4
    assert jax.tree.unflatten(tree, leaves) == plan
    other = jax.tree.structure(jax_index.make_plan([1, 1, 0], 2))
    assert hash(tree) == hash(other)
    assert tree == other
    assert jax.tree.structure(jax_index.make_plan([0, 1, 1], 2)) != tree
    assert jax.tree.structure(jax_index.make_plan([0, 1, 1], 2).generic) == jax.tree.structure(
        plan.generic
    )
    # Unflattening checks nothing: whatever a tree map puts there is carried.
    assert jax.tree.map(lambda leaf: None, plan).ids is None


def test_leaves_are_not_committed_to_a_device():
    plan = jax_index.make_plan([1, 0, 1], 2)
    assert not any(leaf.committed for leaf in jax.tree.leaves(plan))
    x = jax.device_put(jnp.ones(2), jax.devices("cpu")[0])
    assert jax_index.gather(x, plan).devices() == x.devices()


def test_a_plan_takes_weak_references_and_is_freed():
    plan = jax_index.make_plan([1, 0, 1], 2)
    call = jax.jit(jax_index.gather)
    for op in (call, jax_index.gather, jax.grad(lambda v, p: call(v, p).sum())):
        op(jnp.ones(2), plan).block_until_ready()
    watched = [weakref.ref(plan), weakref.ref(plan.perm)]
    del plan
    gc.collect()
    assert [reference() for reference in watched] == [None, None]


def test_threads_may_build_and_use_plans_at_once(rng):
    ids = [rng.integers(0, 64, 30_000) for _ in range(4)]
    y = jnp.asarray(cases.small_integers(rng, (30_000, 2), "float32"))
    expected = [oracle.scatter_add(np.asarray(y), each, 64) for each in ids]
    failures = collections.deque()

    def work(k):
        try:
            for turn in range(6):
                which = (k + turn) % 4
                plan = jax_index.make_plan(ids[which], 64)
                oracle.assert_same(jax_index.scatter_add(y, plan), expected[which])
                raw = jax_index.scatter_add(y, ids[which], num_rows=64)
                oracle.assert_same(raw, expected[which])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def garbage_plans(rng):
    """Plans whose arrays hold what no plan ever would."""
    ids, num_rows = cases.PATTERNS["edges of groups"]
    good = jax_index.make_plan(ids, num_rows)
    other = jax_index.make_plan(np.sort(ids)[::-1], num_rows)
    info = np.iinfo(np.int32)
    extremes = np.array([info.min, info.max, -1, 0, 1, num_rows, ids.size, 1 << 20], np.int32)

    def replaced(fn):
        return jax.tree.map(lambda leaf: jnp.asarray(fn(np.asarray(leaf)).astype(np.int32)), good)

    yield replaced(lambda leaf: rng.integers(info.min, info.max, leaf.shape))
    yield replaced(lambda leaf: rng.choice(extremes, leaf.shape))
    yield replaced(lambda leaf: rng.integers(-3, ids.size + 3, leaf.shape))
    yield replaced(lambda leaf: np.full(leaf.shape, info.max))
    yield replaced(lambda leaf: np.full(leaf.shape, info.min))
    yield replaced(np.zeros_like)
    yield replaced(lambda leaf: leaf[::-1])
    yield replaced(lambda leaf: -leaf)
    # An average of two plans, put back into int32, as an optimiser or an ensemble would.
    yield jax.tree.map(lambda a, b: ((a + b) / 2).astype(jnp.int32), good.generic, other.generic)
    for name in ("ids", "indptr", "perm", "tasks"):
        leaf = getattr(good, name)
        wild = jnp.asarray(rng.choice(extremes, leaf.shape).astype(np.int32))
        yield dataclasses.replace(good, **{name: wild})
        yield dataclasses.replace(good.generic, **{name: wild})
    yield dataclasses.replace(good, indptr=good.indptr[::-1], identity=True)
    yield dataclasses.replace(good, identity=True, no_long_row=True)


def test_arrays_that_hold_garbage_never_crash(device, rng):
    num_rows = cases.PATTERNS["edges of groups"][1]
    ids = cases.PATTERNS["edges of groups"][0]
    ops = [
        (jax.jit(jax_index.gather), num_rows),
        (jax.jit(jax_index.scatter_add), ids.size),
        (jax.jit(lambda y, p: jax_index.index_add(y[:num_rows], p, y)), ids.size),
    ]
    for plan in garbage_plans(rng):
        for op, size in ops:
            for shape in ((), (3,), (40,)):
                out = jax.block_until_ready(op(jnp.ones((size, *shape)), plan))
                assert out.shape[1:] == shape
        stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), plan)
        out = jax.vmap(jax_index.scatter_add, (None, 0))(jnp.ones((ids.size, 2)), stacked)
        assert jax.block_until_ready(out).shape == (2, num_rows, 2)
    # The process is sound afterwards.
    good = jax_index.make_plan(ids, num_rows)
    y = cases.small_integers(rng, (ids.size, 3), "float32")
    oracle.assert_same(
        jax_index.scatter_add(jnp.asarray(y), good), oracle.scatter_add(y, ids, num_rows)
    )


def test_float_leaves_are_refused_where_they_are_used():
    plan = jax_index.make_plan([1, 0, 1], 2)
    averaged = jax.tree.map(lambda a, b: (a + b) / 2, plan, plan)
    for call in (
        lambda: jax_index.gather(jnp.ones(2), averaged),
        lambda: jax_index.scatter_add(jnp.ones(3), averaged),
        lambda: jax_index.index_add(jnp.ones(2), averaged, jnp.ones(3)),
    ):
        with pytest.raises(TypeError, match=r"plan\.ids must be an int32 array of shape"):
            call()


def test_without_the_compiled_builder_the_plan_is_the_same(monkeypatch):
    made = {
        name: jax_index.make_plan(ids, num_rows, mode="drop")
        for name, (ids, num_rows) in cases.PATTERNS.items()
    }
    bounds = np.cumsum([0, 5000, 0, 129, 128])
    from_bounds = jax_index.make_plan_from_indptr(bounds)
    monkeypatch.setattr(jax_index._native.CPU, "module", None)
    for name, (ids, num_rows) in cases.PATTERNS.items():
        plan = jax_index.make_plan(ids, num_rows, mode="drop")
        assert_same_plan(plan, made[name])
        assert (plan.identity, plan.no_long_row) == (made[name].identity, made[name].no_long_row)
    for dtype in ("int64", "uint64"):
        assert_same_plan(jax_index.make_plan_from_indptr(bounds.astype(dtype)), from_bounds)
    with pytest.raises(IndexError, match=r"got ids\[1\] = 7\."):
        jax_index.make_plan([0, 7], 3)


def test_what_looks_like_small_integers_is_refused():
    with pytest.raises(
        TypeError, match=r"ids must be an integer array, got dtype timedelta64\[s\]"
    ):
        jax_index.make_plan(np.array([300, 1], "m8[s]"), 400)
    with pytest.raises(TypeError, match="ids must be an integer array, got dtype"):
        jax_index.make_plan([True, 3], 4)


def test_a_stack_of_plans_is_equal_to_no_plan():
    one = jax_index.make_plan([0, 1, 2, 5], 6).generic
    halves = [jax_index.make_plan(part, 6).generic for part in ([0, 1], [2, 5])]
    stack = jax.tree.map(lambda *leaves: jnp.stack(leaves), *halves)
    averaged = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) / 2, one)
    for odd in (stack, averaged):
        with pytest.raises(TypeError, match="Hash or compare single plans"):
            hash(odd)
        with pytest.raises(TypeError, match="Hash or compare single plans"):
            odd == one  # noqa: B015


def test_more_rows_than_an_id_can_name():
    """Shapes alone: nothing of this size is allocated."""
    x = jax.ShapeDtypeStruct((2**31 + 5,), jnp.int8)
    with pytest.raises(ValueError, match="num_rows must be a whole number from 0 to 2147483647"):
        jax.eval_shape(lambda x: jax_index.gather(x, [2**31 + 1]), x)
    ids = jax.ShapeDtypeStruct((2**31 + 5,), jnp.uint8)
    with pytest.raises(ValueError, match="the number of ids must be a whole number"):
        jax.eval_shape(lambda i: jax_index.make_plan(i, 5, mode="drop"), ids)


def test_plans_are_made_where_implicit_transfers_are_refused():
    with jax.transfer_guard("disallow"):
        plan = jax_index.make_plan(np.array([3, 1, 2]), 4)
    assert plan.indptr.tolist() == [0, 0, 1, 2, 3]
