# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""The gradient of segment_prod where the row's product is beyond the range of its numbers."""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jax_index import make_plan, segment_prod

from . import cases, oracle
from . import oracle_graph as graph_oracle
from .test_properties import settings

settings.load_profile("here")

SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan)


@jax.jit
def _pulled(x, ct, plan):
    return jax.vjp(lambda v: segment_prod(v, plan), x)[1](ct)[0]


def slope(x, ids, n, ct=None):
    """The cotangent of x where the result has the cotangent ct, or 1."""
    ct = np.ones((n, *x.shape[1:]), x.dtype) if ct is None else ct
    return _pulled(jnp.asarray(x), jnp.asarray(ct), make_plan(ids, n, mode="drop").generic)


def wide_range(rng, shape, dtype, special=0.0):
    """Numbers over the whole range of the dtype, subnormal ones too, and some special ones."""
    info = np.finfo(dtype) if np.dtype(dtype).kind == "f" else np.finfo(np.float32)
    exponent = rng.integers(info.minexp - 3, info.maxexp, shape)
    x = np.ldexp(rng.choice([-1.0, 1.0], shape) * rng.uniform(1, 2, shape), exponent)
    return np.where(rng.random(shape) < special, rng.choice(SPECIAL, shape), x).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [("float32", "random"), ("float64", "random"), ("bfloat16", "random")]
    + [("float32", p) for p in ("hubs", "edges of groups", "edges of chunks")],
)
def test_bits(device, rng, dtype, pattern):
    ids, n = cases.PATTERNS[pattern]
    inside = (ids >= 0) & (ids < n)
    with oracle.x64_for(dtype):
        for special in (0.0, 0.05):
            x = wide_range(rng, (ids.size, 5), dtype, special)
            ct = rng.standard_normal((n, 5)).astype(dtype)
            others = graph_oracle.others(oracle.widen(x), ids, n)
            with np.errstate(all="ignore"):
                wanted = graph_oracle.take(oracle.widen(ct), ids) * others
            wanted = oracle.narrow(wanted, x.dtype)
            wanted[~inside] = 0
            oracle.assert_same(slope(x, ids, n, ct), wanted)
            if special == 0 and pattern == "random":
                # Most products of rows are out of range; what is left of some is not.
                product = np.asarray(segment_prod(jnp.asarray(x), make_plan(ids, n, mode="drop")))
                ordinary = np.isfinite(product) & (product != 0)
                assert not ordinary.all()


def exact(x, ids):
    """The product of the others, rounded once: a float, or None where rounding decides."""
    out = []
    for e, own in enumerate(ids):
        rest = [v for k, v in enumerate(x) if k != e and ids[k] == own]
        if any(np.isnan(v) for v in rest) or (
            any(v == 0 for v in rest) and any(np.isinf(v) for v in rest)
        ):
            out.append(np.nan)
            continue
        sign = -1 if sum(np.signbit(v) for v in rest) % 2 else 1
        if any(np.isinf(v) for v in rest):
            out.append(sign * np.inf)
            continue
        product = Fraction(1)
        for v in rest:
            product *= Fraction(float(v))
        out.append(product)
    return out


@given(st.integers(0, 2**32), st.sampled_from(["float32", "float64"]), st.sampled_from([0.0, 0.2]))
def test_it_is_the_product_of_the_others(seed, dtype, special):
    """Within the roundings of a row, wherever that product can be represented."""
    rng = np.random.default_rng(seed)
    ids = np.repeat([0, 1, 2, 3, 4], [1, 2, 3, 5, 9])
    ids = rng.permutation(ids)
    with oracle.x64():
        x = wide_range(rng, ids.size, dtype, special)
        found = np.asarray(slope(x, ids, 5))
    info = np.finfo(dtype)
    largest, least = Fraction(float(info.max)), Fraction(float(info.smallest_subnormal))
    for got, wanted in zip(found, exact(x, ids), strict=True):
        if not isinstance(wanted, Fraction):
            assert np.isnan(got) if np.isnan(wanted) else got == wanted
            continue
        error = abs(wanted) * 12 * Fraction(float(info.eps))
        if abs(wanted) - error > largest:
            assert np.isinf(got)
            assert (got > 0) == (wanted > 0)
        elif abs(wanted) + error < largest:
            assert abs(Fraction(float(got)) - wanted) <= error + least


@pytest.mark.parametrize(
    "row",
    [
        [1e30, 1e30, 2.0],  # overflows
        [1e-30, 1e-30, 2.0],  # underflows
        [1e-30, 1e-10, 1e30],  # is subnormal before it is not
        [np.inf, 3.0, 4.0],
        [-np.inf, np.inf, 2.0],
        [np.inf, 0.0, 2.0],
        [0.0, 0.0, 2.0],
        [0.0, 1e30, 1e30, 1e-30],
        [np.nan, 3.0],
        [1e-45, 1e38],
    ],
    ids=str,
)
def test_it_agrees_with_jax(device, row):
    x = jnp.asarray(row, jnp.float32)
    found = np.asarray(slope(x, np.zeros(len(row), int), 1))
    with oracle.x64():
        # In the wider type nothing leaves the range; XLA's own float32 flushes subnormals.
        wanted = np.asarray(jax.grad(jnp.prod)(jnp.asarray(np.asarray(x), jnp.float64)))
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(found, wanted.astype(np.float32), rtol=1e-6)


def test_rows_that_are_longer_than_any_range(device, rng):
    """Both ways and back: the product of 3000 numbers passes 2^30000 and ends near 1."""
    half = 10.0 ** rng.uniform(5, 8, 1500)
    x = np.concatenate([half, 1 / half]).astype(np.float32)
    found = np.asarray(slope(x, np.zeros(3000, int), 1))
    logs = np.log(x.astype(np.float64))
    np.testing.assert_allclose(found, np.exp(logs.sum() - logs), rtol=1e-3)


def test_a_batch_has_the_bits_of_a_loop(device, rng):
    ids = [np.array([0, 2, 0, 1, 2, 2]), np.array([1, 1, 1, -1, 0, 5])]
    plans = [make_plan(i, 3, mode="drop").generic for i in ids]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *plans)
    x = jnp.asarray(wide_range(rng, (2, 6, 4), np.float32, 0.1))
    one = lambda v, p: jax.grad(lambda u: segment_prod(u, p).sum())(v)
    found = jax.jit(jax.vmap(one))(x, stacked)
    shared = jax.jit(jax.vmap(one, (2, None), 2))(x[0][:, None, :], plans[0])
    for k, plan in enumerate(plans):
        oracle.assert_same(found[k], one(x[k], plan))
    oracle.assert_same(shared[:, 0], one(x[0], plans[0]))


def test_no_nan_is_made_on_the_way(device):
    x = jnp.asarray([1e30, 1e30, 2.0, 0.0, 1e-30], jnp.float32)
    with jax.debug_nans(True):
        found = jax.grad(lambda v: segment_prod(v, [0, 0, 0, 1, 1], 2).sum())(x)
    np.testing.assert_allclose(found, [2e30, 2e30, np.inf, 1e-30, 0], rtol=1e-6)
