# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""Derivatives: exact adjoints, any order of reverse mode, and every kind of cotangent."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import jax_index

from . import cases, oracle


def make_plan(name):
    ids, num_rows = cases.PATTERNS[name]
    return jax_index.make_plan(ids, num_rows, mode="drop"), ids, num_rows


def one_hot(ids, num_rows, dtype=np.float64):
    """The selection matrix S, dense."""
    return np.asarray(np.asarray(ids)[:, None] == np.arange(num_rows)).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "pattern"),
    [("float32", pattern) for pattern in cases.PATTERNS]
    + [(dtype, "hubs") for dtype in ("bfloat16", "int32", "complex64")],
)
def test_gather_and_scatter_add_are_adjoint_exactly_on_integers(device, rng, pattern, dtype):
    plan, ids, num_rows = make_plan(pattern)
    x = cases.small_integers(rng, (num_rows, 2), dtype)
    y = cases.small_integers(rng, (ids.size, 2), dtype)
    taken = np.asarray(jax_index.gather(jnp.asarray(x), plan)).astype(complex)
    # A narrow float holds the whole numbers of short rows only: sum in float32 there.
    wide = "float32" if dtype == "bfloat16" else dtype
    summed = np.asarray(jax_index.scatter_add(jnp.asarray(y.astype(wide)), plan)).astype(complex)
    assert (taken * y.astype(complex)).sum() == (x.astype(complex) * summed).sum()


def test_gather_and_scatter_add_are_adjoint_to_rounding_on_floats(device, rng):
    plan, ids, num_rows = make_plan("hubs")
    x = rng.standard_normal((num_rows, 8)).astype(np.float32)
    y = rng.standard_normal((ids.size, 8)).astype(np.float32)
    taken = np.asarray(jax_index.gather(jnp.asarray(x), plan)).astype(np.float64)
    summed = np.asarray(jax_index.scatter_add(jnp.asarray(y), plan)).astype(np.float64)
    scale = np.abs(taken * y).sum()
    assert abs((taken * y).sum() - (x * summed).sum()) < 1e-6 * scale


@pytest.mark.parametrize("pattern", ["random", "all dropped", "no edges", "no rows", "hubs"])
def test_gradients_are_the_partner_op(device, rng, pattern):
    plan, ids, num_rows = make_plan(pattern)
    x = jnp.asarray(cases.values(rng, (num_rows, 3), "float32"))
    y = jnp.asarray(cases.values(rng, (ids.size, 3), "float32"))
    _, back = jax.vjp(lambda v: jax_index.gather(v, plan), x)
    oracle.assert_same(back(y)[0], oracle.scatter_add(y, ids, num_rows))
    _, back = jax.vjp(lambda v: jax_index.scatter_add(v, plan), y)
    oracle.assert_same(back(x)[0], oracle.gather(x, ids))
    _, back = jax.vjp(lambda u, v: jax_index.index_add(u, plan, v), x, y)
    for_x, for_y = back(x)
    oracle.assert_same(for_x, np.asarray(x))
    oracle.assert_same(for_y, oracle.gather(x, ids))


@pytest.mark.parametrize("axis", [1, -1])
def test_gradients_along_an_axis(device, rng, axis):
    plan, ids, num_rows = make_plan("random")
    x = jnp.asarray(cases.values(rng, (2, num_rows), "float32"))
    y = jnp.asarray(cases.values(rng, (2, ids.size), "float32"))
    _, back = jax.vjp(lambda v: jax_index.gather(v, plan, axis=axis), x)
    oracle.assert_same(back(y)[0], oracle.scatter_add(y, ids, num_rows, 1))
    _, back = jax.vjp(lambda v: jax_index.scatter_add(v, plan, axis=axis), y)
    oracle.assert_same(back(x)[0], oracle.gather(x, ids, 1))
    _, back = jax.vjp(lambda u, v: jax_index.index_add(u, plan, v, axis=axis), x, y)
    oracle.assert_same(back(x)[1], oracle.gather(x, ids, 1))


@pytest.mark.parametrize("dtype", [*cases.FLOATS, *cases.COMPLEX])
def test_whatever_gather_differentiates_its_adjoint_accepts(device, rng, dtype):
    plan, ids, num_rows = make_plan("random")
    with oracle.x64_for(dtype):
        x = jnp.asarray(cases.values(rng, (num_rows, 2), dtype))
        ct = cases.values(rng, (ids.size, 2), dtype)
        _, back = jax.vjp(lambda v: jax_index.gather(v, plan), x)
        oracle.assert_same(back(jnp.asarray(ct))[0], oracle.scatter_add(ct, ids, num_rows))


def test_a_complex_cotangent_is_not_conjugated(device):
    x = jnp.asarray([1 + 1j, 2 - 1j], jnp.complex64)
    _, back = jax.vjp(lambda v: jax_index.gather(v, [1, 0, 1]), x)
    (ct,) = back(jnp.asarray([1j, 2 + 3j, 4], jnp.complex64))
    assert ct.tolist() == [2 + 3j, 4 + 1j]


@pytest.mark.parametrize(("pattern", "order"), [("repeats", 3), ("random", 2), ("no edges", 2)])
def test_numerical_derivatives(device, rng, pattern, order):
    plan, ids, num_rows = make_plan(pattern)
    with oracle.x64():
        x = jnp.asarray(rng.standard_normal((num_rows, 2)) / 2)
        y = jnp.asarray(rng.standard_normal((ids.size, 2)) / 2)

        def loss(x, y):
            taken = jnp.sin(jax_index.gather(x, plan)) * y
            return jax_index.index_add(x**2, plan, taken) + jax_index.scatter_add(taken**2, plan)

        check_grads(loss, (x, y), order=order, modes=["rev"])


def test_second_and_third_derivatives_equal_the_dense_ones(device, rng):
    ids, num_rows = np.array([0, 2, -1, 2, 1, 0, 2]), 3
    plan = jax_index.make_plan(ids, num_rows, mode="drop")
    with oracle.x64():
        S = jnp.asarray(one_hot(ids, num_rows))
        x = jnp.asarray(rng.standard_normal(num_rows))
        w = jnp.asarray(rng.standard_normal(ids.size))
        sparse = lambda v: (
            jax_index.scatter_add(jnp.sin(jax_index.gather(v, plan)) * w, plan) ** 3
        )
        dense = lambda v: (S.T @ (jnp.sin(S @ v) * w)) ** 3
        for _ in range(3):
            sparse, dense = jax.jacrev(sparse), jax.jacrev(dense)
            expected = jax.jit(dense)(x)
            np.testing.assert_allclose(jax.jit(sparse)(x), expected, rtol=1e-12, atol=1e-12)


def test_gradient_of_a_gradient_norm(device, rng):
    ids, num_rows = cases.PATTERNS["repeats"]
    with oracle.x64():
        S = jnp.asarray(one_hot(ids, num_rows))
        x = jnp.asarray(rng.standard_normal(num_rows))
        energy = lambda v: jnp.sum(jnp.tanh(jax_index.gather(v, ids)) ** 2)
        dense = lambda v: jnp.sum(jnp.tanh(S @ v) ** 2)
        norm = lambda f: lambda v: jnp.sum(jax.grad(f)(v) ** 2)
        actual = jax.jit(jax.grad(norm(energy)))(x)
        np.testing.assert_allclose(actual, jax.grad(norm(dense))(x), rtol=1e-12, atol=1e-12)


def test_a_dropped_edge_has_no_value_and_no_gradient(device):
    plan = jax_index.make_plan([0, -1, 1, 2], 2, mode="drop")
    y = jnp.asarray([1.0, jnp.nan, 2.0, jnp.inf])
    assert jax_index.scatter_add(y, plan).tolist() == [1, 2]
    assert jax_index.index_add(jnp.ones(2), plan, y).tolist() == [2, 3]
    _, back = jax.vjp(lambda v: jax_index.scatter_add(v, plan), y)
    assert back(jnp.asarray([jnp.nan, 5.0]))[0].tolist()[1::2] == [0, 0]
    _, back = jax.vjp(lambda v: jax_index.gather(v, plan, fill_value=jnp.inf), jnp.ones(2))
    assert back(y)[0].tolist() == [1, 2]


def test_the_fill_value_does_not_reach_the_gradient(device):
    loss = lambda v: jax_index.gather(v, [0, -1, 0], mode="drop", fill_value=9.0).sum()
    assert jax.value_and_grad(loss)(jnp.ones(2))[1].tolist() == [2, 0]


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "int4"])
def test_arrays_without_derivative_have_float0_cotangents(device, dtype):
    x = jnp.asarray([0, 1, 1]).astype(dtype)
    out, back = jax.vjp(lambda v: jax_index.gather(v, [2, 0, 0]), x)
    zeros = np.zeros(out.shape, jax.dtypes.float0)
    assert back(zeros)[0].dtype == jax.dtypes.float0
    assert jax.jit(lambda v: jax.vjp(lambda u: jax_index.gather(u, [2, 0]), v)[0])(x).dtype == dtype
    if dtype == "bool":
        return
    out, back = jax.vjp(lambda v: jax_index.scatter_add(v, [2, 0, 0], num_rows=3), x)
    assert back(zeros)[0].dtype == jax.dtypes.float0
    out, back = jax.vjp(lambda u, v: jax_index.index_add(u, [2, 0, 0], v), x, x)
    assert [ct.dtype for ct in back(zeros)] == [jax.dtypes.float0] * 2


def test_gather_of_keys_inside_a_derivative(device):
    keys = jax.random.split(jax.random.key(1), 3)

    def loss(scale):
        taken = jax_index.gather(keys, [2, 0])
        return jax.vmap(lambda k: jax.random.normal(k) * scale)(taken).sum()

    drawn = sum(float(jax.random.normal(keys[k])) for k in (2, 0))
    assert abs(float(jax.grad(loss)(2.0)) - drawn) < 1e-6
    out, back = jax.vjp(lambda k: jax_index.gather(k, [1]), keys)
    assert back(np.zeros(out.shape, jax.dtypes.float0))[0].dtype == jax.dtypes.float0


def test_the_gradient_of_a_plan_is_float0(device):
    plan = jax_index.make_plan([0, 1, 1], 2)

    def loss(plan, x, y):
        total = jax_index.gather(x, plan).sum() + (jax_index.scatter_add(y, plan) ** 2).sum()
        return total + jax_index.index_add(x, plan, y).sum()

    of_plan = jax.grad(loss, allow_int=True)(plan, jnp.ones(2), jnp.ones(3))
    assert {leaf.dtype for leaf in jax.tree.leaves(of_plan)} == {np.dtype(jax.dtypes.float0)}
    of_x, of_y = jax.jit(jax.grad(loss, argnums=(1, 2)))(plan, jnp.ones(2), jnp.ones(3))
    assert (of_x.tolist(), of_y.tolist()) == ([2, 3], [3, 5, 5])


def test_the_gradient_of_raw_ids_is_float0(device):
    def loss(ids, x):
        return (jax_index.gather(x, ids) ** 2).sum()

    ids = jnp.asarray([1, 1, 0])
    of_ids, of_x = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True))(ids, jnp.ones(3))
    assert of_ids.dtype == jax.dtypes.float0
    assert of_x.tolist() == [2, 4, 0]


def test_gradients_through_promotion_have_the_operand_types(device):
    plan = jax_index.make_plan([0, 1, 1], 2)
    with jax.numpy_dtype_promotion("standard"):
        x, y = jnp.ones(2, jnp.bfloat16), jnp.ones(3, jnp.float32)
        out, back = jax.vjp(lambda u, v: jax_index.index_add(u, plan, v), x, y)
        assert out.dtype == jnp.float32
        for_x, for_y = back(jnp.asarray([1 + 2.0**-9, 3.0], jnp.float32))
        assert (for_x.dtype, for_y.dtype) == (jnp.bfloat16, jnp.float32)
        assert for_x.tolist() == [1, 3]
        assert for_y.tolist() == [1 + 2.0**-9, 3, 3]
        out, back = jax.vjp(lambda v: jax_index.index_add(jnp.arange(2), plan, v), y)
        assert out.tolist() == [1, 3]
        assert back(jnp.asarray([1.0, 2.0]))[0].tolist() == [1, 2, 2]
        real, image = jnp.ones(2), jnp.full(3, 2j, jnp.complex64)
        _, back = jax.vjp(lambda u, v: jax_index.index_add(u, plan, v), real, image)
        for_real, for_image = back(jnp.asarray([1 + 5j, 2 + 6j], jnp.complex64))
        assert for_real.tolist() == [1, 2]
        assert for_image.tolist() == [1 + 5j, 2 + 6j, 2 + 6j]


def test_gradients_of_weakly_typed_arrays(device):
    weak = jnp.broadcast_to(jnp.asarray(2.0), (3,))
    plan = jax_index.make_plan([0, 2, 2], 3)
    for loss in (
        lambda v: jax_index.gather(v, plan).sum(),
        lambda v: jax_index.scatter_add(v, plan).sum(),
        lambda v: jax_index.index_add(v, plan, v).sum(),
    ):
        assert jax.grad(loss)(weak).shape == (3,)
        assert jax.jit(jax.grad(loss))(weak).dtype == jnp.float32


def test_index_add_of_zero_cotangents(device):
    plan = jax_index.make_plan([0, 1, 1], 2)
    loss = lambda x, y: jax_index.index_add(x, plan, y)[0]
    for_x, for_y = jax.grad(loss, argnums=(0, 1))(jnp.ones(2), jnp.ones(3))
    assert (for_x.tolist(), for_y.tolist()) == ([1, 0], [1, 0, 0])
    unused = jax.grad(lambda x: 0.0 * jax_index.gather(jnp.ones(2), plan).sum() + x)(1.0)
    assert unused == 1.0


def test_forward_mode_is_refused_not_wrong(device):
    plan = jax_index.make_plan([0, 1, 1], 2)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda v: jax_index.gather(v, plan), (jnp.ones(2),), (jnp.ones(2),))
