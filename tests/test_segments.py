# SPDX-License-Identifier: Apache-2.0
"""The segment reductions: every value against an oracle of the written order; every argument."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_index
from jax_index.ops import pointwise

from . import cases, oracle
from . import oracle_graph as graph_oracle

NAMES = ("sum", "mean", "max", "min", "prod", "var", "std", "softmax", "logsumexp")
OPS = {name: getattr(jax_index, f"segment_{name}") for name in NAMES}


def make_plan(ids, num_rows):
    return jax_index.make_plan(ids, num_rows, mode="drop")


def limit(dtype, smallest):
    """What an empty segment's extremum is."""
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return smallest
    if cases.integers(kind):
        info = ml_dtypes.iinfo(kind)
        return int(info.max if smallest else info.min)
    infinite = np.asarray(np.inf if smallest else -np.inf).astype(kind)
    if np.isinf(infinite.astype(np.float64)):
        return infinite
    info = ml_dtypes.finfo(kind)
    return info.max if smallest else info.min


ORACLE = {
    "sum": lambda x, ids, n: oracle.scatter_add(x, ids, n),
    "mean": graph_oracle.mean,
    "max": lambda x, i, n: graph_oracle.extremum(x, i, n, False, limit(x.dtype, False)),
    "min": lambda x, i, n: graph_oracle.extremum(x, i, n, True, limit(x.dtype, True)),
    "prod": graph_oracle.prod,
    "var": graph_oracle.var,
    "std": graph_oracle.std,
}


def near_one(rng, shape, dtype):
    """Numbers whose products stay in range for long."""
    return (np.sign(rng.standard_normal(shape)) * np.exp2(rng.uniform(-1, 1, shape))).astype(dtype)


def values(rng, shape, dtype, name):
    floats = not cases.integers(dtype) and dtype not in ("bool", "float8_e8m0fnu")
    if floats and name == "prod":
        return near_one(rng, shape, dtype)
    return cases.values(rng, shape, dtype)


PATTERNS = [
    "hubs",
    "edges of chunks",
    "edges of groups",
    "all dropped",
    "no edges",
    "no rows, edges dropped",
    "sorted hubs",
]
TABLE = [("float32", p) for p in PATTERNS]
TABLE += [(d, "random") for d in ("float32", "float64", "float16", "bfloat16")]
TABLE += [("bfloat16", "hubs"), ("float64", "edges of chunks")]


@pytest.mark.parametrize(("dtype", "pattern"), TABLE)
def test_floats(device, rng, dtype, pattern):
    ids, n = cases.PATTERNS[pattern]
    with oracle.x64_for(dtype):
        plan = make_plan(ids, n)
        for name, expected in ORACLE.items():
            x = values(rng, (ids.size, 3), dtype, name)
            out = OPS[name](jnp.asarray(x), plan)
            assert not out.weak_type
            oracle.assert_same(out, expected(x, ids, n), name)


@pytest.mark.parametrize("dtype", [*cases.FLOAT8, *cases.FLOAT4])
def test_narrow_floats(device, rng, dtype):
    ids, n = cases.PATTERNS["random"]
    plan = make_plan(ids, n)
    for name, expected in ORACLE.items():
        x = values(rng, (ids.size, 2), dtype, name)
        oracle.assert_same(OPS[name](jnp.asarray(x), plan), expected(x, ids, n), name)
    for name in ("softmax", "logsumexp") if dtype == "float8_e4m3fn" else ():
        x = values(rng, (ids.size, 2), dtype, name)
        wide = OPS[name](jnp.asarray(x.astype(np.float32)), plan)
        oracle.assert_same(OPS[name](jnp.asarray(x), plan), np.asarray(wide).astype(dtype), name)


@pytest.mark.parametrize("dtype", [*cases.INTEGERS, "bool"])
def test_integers(device, rng, dtype):
    ids, n = cases.PATTERNS["random"]
    plan = make_plan(ids, n)
    with oracle.x64_for(dtype):
        x = cases.values(rng, (ids.size, 2), dtype)
        given = jnp.asarray(x)
        for name in ("max", "min") if dtype == "bool" else ("sum", "prod", "max", "min"):
            oracle.assert_same(OPS[name](given, plan), ORACLE[name](x, ids, n), name)
        if dtype not in ("bool", "int2", "uint8", "int32", "uint64"):
            return
        # The others are those of jnp.mean's dtype.
        kind = jax.eval_shape(jnp.mean, given).dtype
        kind = np.dtype("float32") if cases.integers(kind) else kind
        floats = x.astype(np.int8 if dtype in cases.SUB_BYTE else dtype).astype(kind)
        for name in ("mean", "var", "std"):
            oracle.assert_same(OPS[name](given, plan), ORACLE[name](floats, ids, n), name)
        for name in ("softmax", "logsumexp"):
            oracle.assert_same(OPS[name](given, plan), np.asarray(OPS[name](floats, plan)), name)


@pytest.mark.parametrize("dtype", cases.COMPLEX)
def test_complex_sums_and_means(device, rng, dtype):
    ids, n = cases.PATTERNS["hubs"]
    with oracle.x64_for(dtype):
        x = cases.values(rng, (ids.size, 2), dtype)
        total = oracle.scatter_add(x, ids, n)
        oracle.assert_same(OPS["sum"](jnp.asarray(x), ids, n), total)
        mean = np.empty_like(total)
        mean.real = graph_oracle.over_counts(total.real, ids, n)
        mean.imag = graph_oracle.over_counts(total.imag, ids, n)
        oracle.assert_same(OPS["mean"](jnp.asarray(x), ids, n), mean)
        _, back = jax.vjp(lambda v: OPS["mean"](v, ids, n), jnp.asarray(x))
        ct = cases.values(rng, (n, 2), dtype)
        share = np.empty_like(ct)
        share.real = graph_oracle.over_counts(ct.real, ids, n)
        share.imag = graph_oracle.over_counts(ct.imag, ids, n)
        oracle.assert_same(back(jnp.asarray(ct))[0], oracle.gather(share, ids))


@pytest.mark.parametrize("trailing", [(), (1,), (17,), (2, 5), (0,)], ids=str)
def test_any_trailing_shape(device, rng, trailing):
    ids, n = cases.PATTERNS["repeats"]
    for name, expected in ORACLE.items():
        x = values(rng, (ids.size, *trailing), "float32", name)
        oracle.assert_same(OPS[name](jnp.asarray(x), ids, n), expected(x, ids, n), name)
    x = jnp.asarray(cases.values(rng, (ids.size, *trailing), "float32"))
    assert OPS["softmax"](x, ids, n).shape == x.shape
    assert OPS["logsumexp"](x, ids, n).shape == (n, *trailing)


# --- exp and log ----------------------------------------------------------------------------------


def spread(rng, dtype, low, high, count=40_000):
    """Numbers of every size between two bounds, and both bounds."""
    bits = np.array([low, high], dtype).view(f"u{np.dtype(dtype).itemsize}").astype(np.float64)
    picked = rng.uniform(*bits, count).astype(f"u{np.dtype(dtype).itemsize}").view(dtype)
    return np.concatenate([picked, np.array([low, high], dtype)])


def ulps(actual, exact, dtype):
    """The largest error in units in the last place of the right result."""
    exact = np.asarray(exact)
    nearest = exact.astype(dtype)
    unit = np.spacing(np.abs(nearest)).astype(exact.dtype)
    return (np.abs(np.asarray(actual).astype(exact.dtype) - exact) / unit).max()


@pytest.mark.parametrize(("dtype", "wide"), [("float32", np.float64), ("float64", np.longdouble)])
def test_exp_and_log_are_within_one_unit_in_the_last_place(device, rng, dtype, wide):
    top, bottom = (88.72, -103.9) if dtype == "float32" else (709.7, -745.1)
    tiny = np.finfo(dtype).smallest_subnormal
    with oracle.x64_for(dtype):
        x = spread(rng, dtype, tiny, top)
        x = np.concatenate([x, -spread(rng, dtype, tiny, -bottom), rng.uniform(-3, 3, 20_000)])
        x = x.astype(dtype)
        exp = pointwise.apply("exp", [jnp.asarray(x)])
        assert ulps(exp, np.exp(x.astype(wide)), dtype) <= 1
        x = np.concatenate(
            [spread(rng, dtype, tiny, np.finfo(dtype).max), spread(rng, dtype, 0.5, 2)]
        )
        log = np.asarray(pointwise.apply("log", [jnp.asarray(x)]))
        exact = np.log(x.astype(wide))
        assert ulps(log[x != 1], exact[x != 1], dtype) <= 1
        assert (log[x == 1] == 0).all()
        special = jnp.asarray(np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1e4, -1e4], dtype))
        exp = np.asarray(pointwise.apply("exp", [special]))
        np.testing.assert_array_equal(exp, [np.inf, 0, np.nan, 1, 1, np.inf, 0])
        log = np.asarray(pointwise.apply("log", [special]))[:5]
        np.testing.assert_array_equal(log, [np.inf, np.nan, np.nan, -np.inf, -np.inf])


def exponentials(x, ids, n):
    """The largest entry of each row, exp(x - it) by our own kernel, and the sums of that."""
    largest = graph_oracle.extremum(x, ids, n, False, -np.inf).astype(x.dtype)
    wide = oracle.widen(x)
    own = graph_oracle.take(oracle.widen(largest), ids, -np.inf)
    p = np.asarray(pointwise.apply("exp_below", [jnp.asarray(wide), jnp.asarray(own)]))
    return oracle.widen(largest), p, graph_oracle.row_sums(p, ids, n)


def softmax(x, ids, n):
    """The softmax of a segment in the accumulator type."""
    _, p, z = exponentials(x, ids, n)
    z = graph_oracle.take(z, ids)
    with np.errstate(all="ignore"):
        return np.where(z == 0, z.dtype.type(0), p / z)


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [(d, "random") for d in ("float32", "float64", "float16", "bfloat16")]
    + [("float32", p) for p in PATTERNS],
)
def test_softmax_and_logsumexp(device, rng, dtype, pattern):
    ids, n = cases.PATTERNS[pattern]
    with oracle.x64_for(dtype):
        plan = make_plan(ids, n)
        x = (3 * rng.standard_normal((ids.size, 3))).astype(dtype)
        if ids.size > 100:
            x[rng.random(x.shape) < 0.1] = -np.inf
            x[ids == ids[-1]] = -np.inf
        share = softmax(x, ids, n)
        oracle.assert_same(OPS["softmax"](jnp.asarray(x), plan), oracle.narrow(share, dtype))
        largest, _, z = exponentials(x, ids, n)
        wide = [jnp.asarray(v) for v in (largest, z)]
        expected = np.asarray(pointwise.apply("log_sum", wide))
        oracle.assert_same(OPS["logsumexp"](jnp.asarray(x), plan), oracle.narrow(expected, dtype))
        with np.errstate(all="ignore"):
            exact = largest.astype(np.float64) + np.log(z.astype(np.float64))
        np.testing.assert_allclose(expected, exact, rtol=1e-6)
        # Each row that has something to weigh sums to one.
        there = np.isfinite(largest)
        total = np.asarray(OPS["sum"](jnp.asarray(share), plan))
        np.testing.assert_allclose(total, there.astype(np.float64), rtol=1e-5)


# --- Equal values as jax.ops ----------------------------------------------------------------------

FLAGS = [
    dict(zip(("indices_are_sorted", "unique_indices", "bucket_size", "mode"), given, strict=True))
    for given in itertools.chain(
        itertools.product((False, True), (False, True), (None,), (None, "drop", "fill")),
        [(False, False, 2, None), (False, False, None, jax.lax.GatherScatterMode.FILL_OR_DROP)],
    )
]


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
def test_the_import_of_jax_ops_can_be_replaced(device, rng, name):
    ours, theirs = OPS[name], getattr(jax.ops, f"segment_{name}")
    for ids, n in (([2, 0, 2, 5, -1, 7, 0], 6), ([], 2), ([1, 1], None)):
        for dtype in ("float32", "uint8"):
            x = jnp.asarray(rng.integers(0, 4, (len(ids), 2)).astype(dtype))
            at = jnp.asarray(ids, jnp.int32)
            wanted = theirs(x, at, n)
            oracle.assert_same(ours(x, at, n), wanted)
            oracle.assert_same(ours(x, ids, num_segments=n), wanted)
            if n is not None and dtype == "float32":
                traced = jax.jit(ours, static_argnums=2)
                oracle.assert_same(traced(x, at, n), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_flags_are_accepted_and_not_believed(device, rng, name):
    x = jnp.asarray(cases.values(rng, (7,), "float32"))
    ids = [2, 0, 2, 5, -1, 7, 0]
    plain = OPS[name](x, ids, 6)
    for flags in FLAGS:
        oracle.assert_same(OPS[name](x, ids, 6, **flags), plain)
    # By place, as in jax.ops.
    oracle.assert_same(OPS[name](x, ids, 6, True, True, 3, "drop", None), plain)
    oracle.assert_same(OPS[name](x, ids, 6, mode="promise_in_bounds"), plain)
    oracle.assert_same(OPS[name](x, make_plan(ids, 6), 6), plain)
    traced = jax.jit(lambda v, i: OPS[name](v, i, 6, mode="fill"))
    oracle.assert_same(traced(x, jnp.asarray(ids)), plain)


def test_the_number_of_segments_is_that_of_the_ids(device):
    x = jnp.ones(3)
    for ids in ([0, 2, 0], np.array([0, 2, 0], np.uint64), jnp.asarray([0, 2, 0])):
        assert OPS["sum"](x, ids).tolist() == [2, 0, 1]
    assert OPS["sum"](x, [-1, -3, -1]).tolist() == []
    assert OPS["sum"](x[:0], []).tolist() == []
    assert OPS["mean"](x, jax_index.make_plan([0, 0, 1], 4)).tolist() == [1, 1, 0, 0]


def test_mode_raise_names_the_id(device):
    with pytest.raises(IndexError) as refused:
        OPS["max"](jnp.ones(2), [0, 4], 3, mode="raise")
    assert str(refused.value) == (
        "jax_index.segment_max: every segment_id must be in [0, 3) (num_segments is 3), got "
        "segment_ids[1] = 4. Use mode='drop' if such ids are padding."
    )
    assert OPS["max"](jnp.ones(2), [0, 2], 3, mode="raise").tolist() == [1, -np.inf, 1]


# --- Zeros, infinities, NaN -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_logsumexp_of_infinities(dtype):
    x = jnp.asarray(np.array([np.inf, 1, -np.inf, 2, np.nan, -np.inf, np.inf, np.inf], dtype))
    out = jax_index.segment_logsumexp(x, [0, 0, 1, 2, 3, 4, 6, 6], 7)
    expected = np.array([np.inf, -np.inf, 2, np.nan, -np.inf, -np.inf, np.inf], out.dtype)
    oracle.assert_same(out, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "float8_e5m2"])
def test_which_of_equal_extrema_is_returned(device, dtype):
    with oracle.x64_for(dtype):
        x = jnp.asarray(np.array([-0.0, 0.0, 0.0, -0.0, -0.0, np.nan, 1.0, -1.0, np.nan], dtype))
        ids = [0, 0, 1, 1, 2, 3, 3, 4, 5]
        top, bottom = (np.asarray(OPS[name](x, ids, 6)) for name in ("max", "min"))
        oracle.assert_same(top, np.array([0.0, 0.0, -0.0, np.nan, -1.0, np.nan], dtype))
        oracle.assert_same(bottom, np.array([-0.0, -0.0, -0.0, np.nan, -1.0, np.nan], dtype))
        assert np.signbit(top).tolist()[:3] == [False, False, True]
        assert np.signbit(bottom).tolist()[:3] == [True] * 3


def test_subnormals_count_as_what_they_are(device):
    tiny = np.array([1e-45, -1e-45, 0.0, 3e-42], np.float32)
    given = jnp.asarray(tiny)
    oracle.assert_same(OPS["max"](given, [0, 0, 0, 1], 2), tiny[[0, 3]])
    oracle.assert_same(OPS["min"](given, [0, 0, 0, 1], 2), tiny[[1, 3]])
    slope = jax.grad(lambda v: OPS["max"](v, [0, 0, 0, 1], 2)[0])(given)
    assert slope.tolist() == [1, 0, 0, 0]
    # 1e-45 is no zero, so the other entry has a gradient of its own.
    pair = np.array([1e-45, 2.0, 0.0, 3e-42], np.float32)
    back = jax.jit(jax.vjp(lambda v: OPS["prod"](v, [0, 0, 1, 1], 2), jnp.asarray(pair))[1])
    oracle.assert_same(back(jnp.ones(2, jnp.float32))[0], pair[[1, 0, 3, 2]])
    mean = OPS["mean"](jnp.asarray(tiny[[3, 3]]), [0, 0], 1)
    oracle.assert_same(mean, tiny[[3]])


EVERY = [*cases.FLOATS, *cases.INTEGERS, "bool"]


@pytest.mark.parametrize("dtype", EVERY)
def test_the_extremum_of_nothing(device, dtype):
    with oracle.x64_for(dtype):
        x = np.ones(2, np.int8).astype(dtype)
        for name, smallest in (("max", False), ("min", True)):
            out = np.asarray(OPS[name](jnp.asarray(x), [0, 2], 4))
            expected = np.ones(4, np.int8).astype(dtype)
            expected[[1, 3]] = np.asarray(limit(dtype, smallest)).astype(dtype)
            oracle.assert_same(out, expected)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_stays_in_its_segment(device, rng, name):
    x = rng.standard_normal((40, 2)).astype(np.float32)
    ids = np.arange(40) % 4
    plain = np.asarray(OPS[name](jnp.asarray(x), ids, 4))
    rows = np.arange(40) % 4 != 1 if name == "softmax" else np.arange(4) != 1
    for poison in (np.inf, -np.inf, np.nan):
        x[5] = poison
        out = np.asarray(OPS[name](jnp.asarray(x), ids, 4))
        oracle.assert_same(out[rows], plain[rows])
        if np.isnan(poison):
            assert np.isnan(out[~rows]).all()


@pytest.mark.parametrize("name", NAMES)
def test_dropped_entries_are_never_read(device, rng, name):
    x = rng.standard_normal((6, 2)).astype(np.float32)
    plain = np.asarray(OPS[name](jnp.asarray(x), [0, 1, -1, 0, 3, 2], 3))
    x[[2, 4]] = [[np.nan, np.inf], [-np.inf, np.nan]]
    out = np.asarray(OPS[name](jnp.asarray(x), [0, 1, -1, 0, 3, 2], 3))
    oracle.assert_same(out, plain)
    if name == "softmax":
        assert not out[[2, 4]].any()


def test_a_plan_may_hold_anything(device, rng):
    plan = jax_index.make_plan(rng.integers(0, 9, 3000), 9).generic
    x = jnp.asarray(rng.standard_normal((3000, 2)), jnp.float32)
    for seed in range(3):
        wild = np.random.default_rng(seed)
        garbage = jax.tree.map(
            lambda leaf, wild=wild: jnp.asarray(
                wild.integers(-(2**31), 2**31, leaf.shape), jnp.int32
            ),
            plan,
        )
        for name in NAMES:
            assert OPS[name](x, garbage).shape == OPS[name](x, plan).shape


def test_results_are_not_weakly_typed(device):
    weak = jnp.broadcast_to(jnp.asarray(2.0), (3,))
    assert weak.weak_type
    for op in OPS.values():
        assert not op(weak, [0, 2, 2], 3).weak_type
        assert not jax.eval_shape(lambda v, op=op: op(v, [0, 2, 2], 3), weak).weak_type
