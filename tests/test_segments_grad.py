# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Derivatives of the segment reductions: the bits of the first, the values of every further one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import cases, oracle
from . import oracle_graph as graph_oracle
from .test_segments import NAMES, OPS, make_plan, near_one, softmax


def share_of_ties(x, ids, n, ct, smallest):
    out = graph_oracle.extremum(x, ids, n, smallest, 0)
    tie = graph_oracle.ties(x, out, ids)
    count = graph_oracle.row_sums(tie.astype(oracle.widen(x).dtype), ids, n)
    with np.errstate(all="ignore"):
        share = graph_oracle.take(oracle.widen(ct), ids) / graph_oracle.take(count, ids, 1)
    return oracle.narrow(np.where(tie, share, share.dtype.type(0)), x.dtype)


def mean_grad(x, ids, n, ct):
    share = oracle.narrow(graph_oracle.over_counts(oracle.widen(ct), ids, n), x.dtype)
    return graph_oracle.take(share, ids)


def prod_grad(x, ids, n, ct):
    """ct times the product of the others, in the type that products are computed in."""
    wide = oracle.widen(x)
    with np.errstate(all="ignore"):
        out = graph_oracle.take(oracle.widen(ct), ids) * graph_oracle.others(wide, ids, n)
    return oracle.narrow(out, x.dtype)


def softmax_grad(x, ids, n, ct):
    share, ct = softmax(x, ids, n), oracle.widen(ct)
    step = lambda total, e: graph_oracle.fma(share[e], ct[e], total)
    delta = graph_oracle.take(graph_oracle.row_sums(share, ids, n, step), ids)
    return oracle.narrow(share * (ct - delta), x.dtype)


def logsumexp_grad(x, ids, n, ct):
    out = softmax(x, ids, n) * graph_oracle.take(oracle.widen(ct), ids)
    return oracle.narrow(out, x.dtype)


GRADS = {
    "sum": lambda x, ids, n, ct: oracle.gather(ct, ids),
    "mean": mean_grad,
    "max": lambda *given: share_of_ties(*given, False),
    "min": lambda *given: share_of_ties(*given, True),
    "prod": prod_grad,
    "var": graph_oracle.var_grad,
    "std": lambda *given: graph_oracle.var_grad(*given, root=True),
    "softmax": softmax_grad,
    "logsumexp": logsumexp_grad,
}


def values(rng, shape, dtype, name):
    if name in ("max", "min"):
        return cases.small_integers(rng, shape, dtype)
    if name == "prod":
        x = near_one(rng, shape, dtype)
        x[rng.random(shape) < 0.04] = 0
        return x
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [(d, "random") for d in ("float32", "float64", "float16", "bfloat16")]
    + [("float32", p) for p in ("hubs", "edges of groups", "no rows, edges dropped")],
)
def test_the_bits_of_the_gradient(device, rng, dtype, pattern):
    ids, n = cases.PATTERNS[pattern]
    with oracle.x64_for(dtype):
        plan = make_plan(ids, n)
        for name, expected in GRADS.items():
            x = values(rng, (ids.size, 2), dtype, name)
            op = OPS[name]
            rows = ids.size if name == "softmax" else n
            ct = rng.standard_normal((rows, 2)).astype(dtype)
            back = jax.jit(lambda v, c, p, op=op: jax.vjp(lambda u: op(u, p), v)[1](c)[0])
            found = back(jnp.asarray(x), jnp.asarray(ct), plan)
            wanted = expected(x, ids, n, ct)
            wanted[(ids < 0) | (ids >= n)] = 0
            oracle.assert_same(found, wanted, name)


# --- Against a dense matrix in float64, order by order --------------------------------------------


def dense(name, x, ids, n):
    """The reduction by a mask [n, m]."""
    w = jnp.asarray((np.asarray(ids) == np.arange(n)[:, None]).astype(float))
    full = w.sum(1) > 0
    count = jnp.maximum(w.sum(1), 1)
    if name == "sum":
        return w @ x
    if name in ("mean", "var", "std"):
        mean = w @ x / count
        if name == "mean":
            return mean
        var = (w * (x[None] - mean[:, None]) ** 2).sum(1) / count
        positive = var > 0
        return (
            var if name == "var" else jnp.where(positive, jnp.sqrt(jnp.where(positive, var, 1)), 0)
        )
    if name in ("max", "min"):
        pick, empty = (jnp.max, -jnp.inf) if name == "max" else (jnp.min, jnp.inf)
        return pick(jnp.where(w > 0, x, empty), 1)
    if name == "prod":
        return jnp.prod(jnp.where(w > 0, x, 1), 1)
    z = w @ jnp.exp(x)
    if name == "logsumexp":
        return jnp.where(full, jnp.log(jnp.where(full, z, 1)), -jnp.inf)
    return jnp.exp(x) * (w.T @ jnp.where(full, 1 / jnp.where(full, z, 1), 0))


def derivatives(f, x, directions):
    """The gradient of a loss, and those of its directional derivatives, one order after another."""
    finite = lambda y: jnp.where(jnp.isfinite(y), y, 0)
    loss = lambda v: (jnp.cos(jnp.arange(f(v).size)) * finite(f(v)) ** 2).sum()
    out = []
    for direction in [None, *directions]:
        if direction is not None:
            loss = lambda v, of=loss, d=direction: jnp.vdot(jax.grad(of)(v), d)
        out.append(jax.grad(loss))
    return jax.jit(lambda v: [each(v) for each in out])(x)


@pytest.mark.parametrize(
    ("name", "zeros"),
    [(name, False) for name in NAMES if name != "prod"] + [(n, True) for n in ("prod", "std")],
)
def test_derivatives_equal_the_dense_ones(device, rng, name, zeros):
    ids, n = np.array([4, 0, -1, 4, 2, 9, 4, 0, 0, 4, 5]), 6
    plan = make_plan(ids, n)
    with oracle.x64():
        x = rng.standard_normal(ids.size)
        if zeros:
            # Rows with one zero, with two, and a row whose entries are all equal.
            x[[0, 1, 3]] = 0
            x[[1, 7, 8]] = 0 if name == "prod" else 1.5
        directions = [jnp.asarray(rng.standard_normal(ids.size)) for _ in range(1 + zeros)]
        found = derivatives(lambda v: OPS[name](v, plan), jnp.asarray(x), directions)
        expected = derivatives(lambda v: dense(name, v, ids, n), jnp.asarray(x), directions)
        for order, (a, b) in enumerate(zip(found, expected, strict=True)):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"{name} {order + 1}")


def test_second_derivatives_of_products_of_long_rows_with_zeros(device, rng):
    """Also of plans that say that no row is long: fewer steps reach all of a row then."""
    ids = np.repeat([0, 1], [128, 5])
    with oracle.x64():
        x = near_one(rng, (ids.size,), np.float64)
        x[40] = 0
        direction = [jnp.asarray(rng.standard_normal(ids.size))]
        plan = make_plan(ids, 2)
        assert plan.no_long_row
        found = derivatives(lambda v: OPS["prod"](v, plan), jnp.asarray(x), direction)
        wanted = derivatives(lambda v: dense("prod", v, ids, 2), jnp.asarray(x), direction)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


# --- Rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_ties_share_equally(device, name, dtype):
    sign = 1 if name == "max" else -1
    x = sign * jnp.asarray([3, 3, 1, 0.0, -0.0, 0.0, 5, 5, 5, 5], dtype)
    ids = [0, 0, 0, 1, 1, 1, 2, 2, 2, 2]
    _, back = jax.vjp(lambda v: OPS[name](v, ids, 4), x)
    (ct,) = back(jnp.asarray([1, 3, 2, 7], dtype))
    assert ct.tolist() == [0.5, 0.5, 0, 1, 1, 1, 0.5, 0.5, 0.5, 0.5]
    # Its own derivative is the mean over the ties, in a fixed order.
    _, twice = jax.vjp(lambda c: back(c)[0], jnp.asarray([1, 3, 2, 7], dtype))
    (mean,) = twice(jnp.asarray([2, 4, 9, 1, 2, 3, 1, 2, 3, 6], dtype))
    assert mean.tolist() == [3, 2, 3, 0]


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_nan_row_shares_among_its_nans(device, name):
    x = jnp.asarray([jnp.nan, 1.0, jnp.nan, 2.0, jnp.inf, jnp.inf, -jnp.inf])
    _, back = jax.vjp(lambda v: OPS[name](v, [0, 0, 0, 1, 2, 2, 2], 3), x)
    infinite = [0.5, 0.5, 0] if name == "max" else [0, 0, 1]
    assert back(jnp.asarray([2.0, 5.0, 1.0]))[0].tolist() == [1, 0, 1, 5, *infinite]


def test_gradients_where_there_is_nothing_to_vary(device):
    x = jnp.asarray([2.0, 2.0, 2.0, 7.0, 1.0, 5.0])
    ids = [0, 0, 0, 1, 4, 4]
    slope = lambda name: jax.jit(jax.grad(lambda v: OPS[name](v, ids, 6).sum()))
    assert slope("std")(x).tolist() == [0, 0, 0, 0, -0.5, 0.5]
    assert slope("var")(x).tolist() == [0, 0, 0, 0, -2, 2]
    twice = jax.jit(jax.grad(lambda v: (slope("std")(v) ** 2).sum()))
    assert twice(x).tolist() == [0] * 6
    below = jnp.full(3, -jnp.inf)
    for name in ("softmax", "logsumexp"):
        value, back = jax.vjp(lambda v, name=name: OPS[name](v, [0, 0, 1], 3), below)
        assert value.tolist() == ([0, 0, 0] if name == "softmax" else [-np.inf] * 3)
        assert back(jnp.ones(3))[0].tolist() == [0, 0, 0]
        first = lambda v, name=name: jax.vjp(lambda u: OPS[name](u, [0, 0, 1], 3), v)[1](
            jnp.ones(3)
        )
        again = jax.jit(jax.grad(lambda v, first=first: first(v)[0].sum()))
        assert again(below).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_empty_segments_have_finite_gradients(device, rng, name):
    x = jnp.asarray(rng.standard_normal((5, 2)), jnp.float32)
    ids = [1, 1, 3, 3, 3]
    op = lambda v: OPS[name](v, ids, 6)
    out, back = jax.vjp(op, x)
    (ct,) = back(jnp.ones_like(out))
    assert np.isfinite(ct).all()
    alone = jax.vjp(lambda v: OPS[name](v, [0, 0, 1, 1, 1], 2), x)
    oracle.assert_same(ct, alone[1](jnp.ones_like(alone[0]))[0])


@pytest.mark.parametrize("name", NAMES)
def test_dropped_entries_have_no_gradient_of_any_order(device, rng, name):
    """What stands at a dropped entry reaches nothing, be it a value, a cotangent or a direction."""
    ids, n = np.array([0, 1, -1, 0, 3, 2, 1]), 3
    dropped = [2, 4]
    with oracle.x64():
        results = []
        for poison in (0.5, np.nan, np.inf):
            x, d = (rng.standard_normal(7) for rng in (np.random.default_rng(k) for k in (1, 2)))
            ct = np.random.default_rng(3).standard_normal(7 if name == "softmax" else n)
            x[dropped] = d[dropped] = poison
            if name == "softmax":
                ct[dropped] = poison

            def first(v, c):
                return jax.vjp(lambda u: OPS[name](u, ids, n), v)[1](c)[0]

            @jax.jit
            def both(v, c, d):
                out, back = jax.vjp(first, v, c)
                return out, *back(d)

            slope, second, of_ct = (np.asarray(v) for v in both(*map(jnp.asarray, (x, ct, d))))
            assert (slope[dropped] == 0).all()
            assert (second[dropped] == 0).all()
            results.append((slope, second, of_ct))
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                oracle.assert_same(b, a)


@pytest.mark.parametrize("name", NAMES)
def test_arrays_without_derivative_have_float0_cotangents(device, name):
    kinds = ("int32", "uint8", "bool") if name not in ("sum", "prod") else ("int32", "uint8")
    for dtype in kinds:
        x = jnp.asarray([0, 1, 1]).astype(dtype)
        out, back = jax.vjp(lambda v: OPS[name](v, [2, 0, 0], 3), x)
        floats = jnp.issubdtype(out.dtype, jnp.inexact)
        ct = jnp.ones_like(out) if floats else np.zeros(out.shape, jax.dtypes.float0)
        assert back(ct)[0].dtype == jax.dtypes.float0


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_plan_and_of_ids_is_float0(device, name):
    x, ids = jnp.ones(3), jnp.asarray([0, 1, 1])
    loss = lambda v, i: OPS[name](v, i, 2).sum()
    for given in (ids, make_plan(ids, 2)) if name == "softmax" else (make_plan(ids, 2),):
        of_x, of_ids = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True))(x, given)
        assert of_x.shape == (3,)
        assert {leaf.dtype for leaf in jax.tree.leaves(of_ids)} == {jax.dtypes.float0}
