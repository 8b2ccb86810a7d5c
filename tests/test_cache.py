# SPDX-License-Identifier: Apache-2.0
"""Raw ids: the cache that stands behind them, and what it keeps alive."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import _cache, _ids, _plan

from . import oracle


@pytest.fixture
def cache(monkeypatch):
    """An empty cache in the place of the one that the ops use."""
    made = _cache.PlanCache()
    monkeypatch.setattr(_cache, "CACHE", made)
    return made


@pytest.fixture
def builds(monkeypatch):
    """A list of the ids of every plan that is built."""
    seen = []
    build = _plan.build

    def counted(op, ids, *rest):
        seen.append(np.asarray(ids).tolist())
        return build(op, ids, *rest)

    monkeypatch.setattr(_plan, "build", counted)
    return seen


def test_equal_ids_are_sorted_once(cache, builds):
    x = jnp.arange(4.0)
    for _ in range(3):
        assert jax_index.gather(x, [3, 0]).tolist() == [3, 0]
        assert jax_index.gather(x, np.array([3, 0])).tolist() == [3, 0]
        assert jax_index.scatter_add(jnp.ones(2), [3, 0], num_rows=4).tolist() == [1, 0, 0, 1]
    assert builds == [[3, 0]]
    assert len(cache) == 1


def test_the_key_is_the_content(cache, builds):
    x = jnp.arange(4.0)
    ids = np.array([3, 0])
    assert jax_index.gather(x, ids).tolist() == [3, 0]
    ids[0] = 1
    assert jax_index.gather(x, ids).tolist() == [1, 0]
    ids[0] = 3
    assert jax_index.gather(x, ids).tolist() == [3, 0]
    assert builds == [[3, 0], [1, 0]]


def test_the_key_knows_rows_mode_and_type(cache):
    ids = np.array([0, 1])
    for num_rows in (2, 3):
        out = jax_index.scatter_add(jnp.ones(2), ids, num_rows=num_rows)
        assert out.shape == (num_rows,)
    with pytest.raises(IndexError, match=r"ids\[0\] = -1"):
        jax_index.gather(jnp.ones(2), [-1])
    assert jax_index.gather(jnp.ones(2), [-1], mode="drop").tolist() == [0]
    with pytest.raises(IndexError, match=r"ids\[0\] = -1"):
        jax_index.gather(jnp.ones(2), [-1])
    # The bytes of one int32 pair and of one int64 are equal, the ids are not.
    pair = np.array([1, 0], np.int32)
    assert jax_index.gather(jnp.arange(2.0), pair).tolist() == [1, 0]
    assert jax_index.gather(jnp.arange(2.0), pair.view(np.int64)).tolist() == [1]
    byte = np.array([255], np.uint8)
    for ids, expected in ((byte, [255]), (byte.view(np.int8), [-1])):
        taken = jax_index.gather(jnp.arange(300.0), ids, mode="drop", fill_value=-1)
        assert taken.tolist() == expected


def test_a_failed_build_is_not_kept(cache):
    for _ in range(2):
        with pytest.raises(IndexError):
            jax_index.gather(jnp.ones(2), [5])
    assert len(cache) == 0
    assert cache.nbytes == 0


def test_make_plan_does_not_fill_it(cache):
    plan = jax_index.make_plan([1, 0], 2)
    jax_index.gather(jnp.ones(2), plan)
    jax_index.scatter_add(jnp.ones(2), plan)
    assert len(cache) == 0


def test_traced_ids_do_not_fill_it(cache):
    jax.jit(jax_index.gather)(jnp.ones(2), jnp.array([1, 0]))
    assert len(cache) == 0


def test_it_is_bounded_in_bytes_and_forgets_the_oldest():
    ids = [np.full(100, k) for k in range(6)]
    size = jax_index.make_plan(ids[0], 10).nbytes
    cache = _cache.PlanCache(max_bytes=3 * size + size // 2)
    plans = [cache.get("gather", each, 10, "raise") for each in ids[:3]]
    assert (len(cache), cache.nbytes) == (3, 3 * size)
    # Used again, the first one is the youngest.
    assert cache.get("gather", ids[0], 10, "raise") is plans[0]
    cache.get("gather", ids[3], 10, "raise")
    assert (len(cache), cache.nbytes) == (3, 3 * size)
    assert cache.get("gather", ids[0], 10, "raise") is plans[0]
    assert cache.get("gather", ids[2], 10, "raise") is plans[2]
    assert cache.get("gather", ids[1], 10, "raise") is not plans[1]
    # What is larger than the bound is used but not kept.
    large = cache.get("gather", np.zeros(2000, int), 10, "raise")
    assert large.num_edges == 2000
    assert cache.nbytes <= cache.max_bytes
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)


def test_memory_comes_back_when_a_plan_is_forgotten():
    size = jax_index.make_plan(np.zeros(100, int), 10).nbytes
    cache = _cache.PlanCache(max_bytes=size)
    watched = weakref.ref(cache.get("gather", np.zeros(100, int), 10, "raise"))
    assert watched() is not None
    cache.get("gather", np.ones(100, int), 10, "raise")
    gc.collect()
    assert watched() is None


def test_the_bound_is_read_from_the_environment():
    code = "from jax_index import _cache; print(_cache.CACHE.max_bytes)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_INDEX_CACHE_BYTES": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "12345\n"
    assert _cache.DEFAULT_BYTES == 512 * 2**20


def test_a_jax_array_is_copied_to_the_host_once(cache, monkeypatch):
    copies = []
    host_ids = _ids.host_ids

    def counted(op, ids, *rest):
        copies.append(id(ids))
        return host_ids(op, ids, *rest)

    monkeypatch.setattr(_ids, "host_ids", counted)
    ids = jnp.array([1, 0, 1])
    for _ in range(4):
        jax_index.gather(jnp.ones(2), ids)
        jax_index.scatter_add(jnp.ones(3), ids, num_rows=2)
    assert copies == [id(ids)]
    # Another array of equal content is read, and finds the same plan.
    jax_index.gather(jnp.ones(2), ids + 0)
    assert len(copies) == 2
    assert len(cache) == 1


def test_a_jax_array_is_not_kept_alive(cache):
    ids = jnp.array([1, 0, 1])
    jax_index.gather(jnp.ones(2), ids)
    watched = weakref.ref(ids)
    address = id(ids)
    del ids
    gc.collect()
    assert watched() is None
    assert address not in cache._digests


def test_an_address_that_is_used_again_is_not_believed(cache):
    first = jnp.array([1, 0, 1])
    jax_index.gather(jnp.arange(2.0), first)
    reference, digest = cache._digests[id(first)]
    other = jnp.array([0, 0, 0])
    # As if `other` had been given the address of `first`.
    cache._digests[id(other)] = (reference, digest)
    assert jax_index.gather(jnp.arange(2.0), other).tolist() == [0, 0, 0]


def test_many_short_lived_arrays_leave_nothing_behind(cache):
    for k in range(50):
        jax_index.gather(jnp.arange(64.0), jnp.array([k]))
    gc.collect()
    assert len(cache._digests) == 0


def test_threads_share_it(cache):
    size = jax_index.make_plan(np.zeros(500, int), 10).nbytes
    cache.max_bytes = 3 * size
    failures = []

    def work(seed):
        try:
            for turn in range(30):
                ids = np.full(500, (seed + turn) % 10)
                out = jax_index.scatter_add(jnp.ones(500), ids, num_rows=10)
                oracle.assert_same(out, 500.0 * np.eye(10, dtype=np.float32)[ids[0]])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    assert cache.nbytes == sum(plan.nbytes for plan in cache._plans.values()) <= 3 * size


def test_concrete_ids_inside_jit_use_it(cache, builds):
    ids = jnp.array([1, 0])

    @jax.jit
    def twice(x):
        return jax_index.gather(x, ids) + jax_index.gather(x, np.array([1, 0], np.int32))

    assert twice(jnp.arange(2.0)).tolist() == [2, 0]
    assert len(cache) == 1
    assert len(builds) == 1
    # A plan that was built while a program was traced serves outside of it.
    assert jax_index.gather(jnp.arange(2.0), ids).tolist() == [1, 0]
    assert not isinstance(next(iter(cache._plans.values())).ids, jax.core.Tracer)


def test_ids_beyond_64_bits_keep_their_names_in_errors(cache):
    with pytest.raises(IndexError, match=r"got ids\[1\] = 36893488147419103232\."):
        jax_index.gather(jnp.ones(2), [0, 2**65])
    assert jax_index.gather(jnp.ones(2), [0, 2**65], mode="drop").tolist() == [1, 0]
