# SPDX-License-Identifier: Apache-2.0
"""jax_index.primitives: every op in every mode of differentiation, and the mode itself."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg, gmres

import jax_index
from jax_index import primitives
from tests import oracle
from tests.forward_cases import CASES, GRAPH, IDS, NUM_ROWS, PLAN

NAMES = list(CASES)
LINEAR = [(name, group) for name in NAMES for group in CASES[name][3]]
close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)


@pytest.fixture
def point(rng):
    """Make the point, and directions, at which a case is differentiated."""

    def make(name):
        shapes = CASES[name][2] * 3
        drawn = [jnp.asarray(rng.standard_normal(shape)) for shape in shapes]
        count = len(shapes) // 3
        return tuple(tuple(drawn[i * count : (i + 1) * count]) for i in range(3))

    with oracle.x64():
        yield make


def flat(name, module):
    """Return a case as a function of one vector; of the one-hot matrices where module is None."""
    op, dense, shapes, _ = CASES[name]
    _, unravel = ravel_pytree([jnp.zeros(s) for s in shapes])
    fun = dense if module is None else op(module)
    return lambda v: fun(*unravel(v)).ravel()


def loss(name, module):
    """Return a case as a function of a vector to a number, with derivatives of every order."""
    return lambda v: jnp.sum(jnp.sin(flat(name, module)(v)))


def same(actual, expected):
    """Assert that two trees hold the same bits."""
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        oracle.assert_same(np.asarray(a), np.asarray(b))


def test_every_op_has_a_case_and_its_name_here():
    ops = {
        n
        for n in jax_index.__all__
        if n.startswith(("segment_", "gather", "scatter", "index", "spmm", "sddmm", "edge"))
        or n.endswith("_attention")
    }
    assert ops == set(primitives.__all__) == {name.split(",")[0] for name in NAMES}
    for name in primitives.__all__:
        ours, plain = getattr(primitives, name), getattr(jax_index, name)
        assert ours.__name__ == name
        assert ours.__wrapped__ is plain
        assert "every mode" in ours.__doc__


@pytest.mark.parametrize("name", NAMES)
def test_first_derivatives(device, point, name):
    v, t, u = (ravel_pytree(x)[0] for x in point(name))
    of, dense = flat(name, primitives), flat(name, None)
    close(of(v), dense(v))
    jacobian = jax.jit(jax.jacfwd(dense))(v)
    close(jax.jvp(of, (v,), (t,))[1], jacobian @ t)

    @jax.jit
    def program(v, t, u):
        out, linear = jax.linearize(of, v)
        along = jax.vmap(lambda t: jax.jvp(of, (v,), (t,))[1])(jnp.stack([t, u]))
        return out, along, linear(t), jax.jacfwd(of)(v), jax.jacrev(of)(v)

    out, along, linear, forward, reverse = program(v, t, u)
    same(out, jax.jit(flat(name, jax_index))(v))
    close(along, jnp.stack([jacobian @ t, jacobian @ u]))
    close(linear, jacobian @ t)
    close(forward, jacobian)
    close(reverse, jacobian)


@pytest.mark.parametrize("name", NAMES)
def test_second_and_third_derivatives(device, point, name):
    v, t, _ = (ravel_pytree(x)[0] for x in point(name))

    def push(f):
        return lambda v: jax.jvp(f, (v,), (t,))[1]

    def pull(f):
        return lambda v: jnp.vdot(jax.grad(f)(v), t)

    # Forward over reverse (as a matrix too), reverse over forward, and both in the third order;
    # reverse over reverse has the bits of the default mode, see below.
    def program(f):
        return jax.hessian(f)(v), jax.grad(push(f))(v), pull(push(pull(f)))(v)

    hessian, product, third = jax.jit(lambda: program(loss(name, primitives)))()
    dense = loss(name, None)
    expected, along = jax.jit(lambda: (jax.hessian(dense)(v), push(push(push(dense)))(v)))()
    close(hessian, expected, atol=1e-11)
    close(product, expected @ t, atol=1e-11)
    close(third, along, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_reverse_mode_has_the_bits_of_the_default_mode(device, point, name):
    args, dots, other = point(name)
    every = tuple(range(len(args)))

    def program(module):
        of = CASES[name][0](module)
        grad = jax.grad(lambda *a: jnp.sum(jnp.sin(of(*a))), every)
        batched = jax.tree.map(lambda a, b: jnp.stack([a, b]), args, other)
        over = jax.grad(lambda *a: jnp.sum(jnp.sin(jax.vmap(of)(*a))), every)
        again = jax.grad(
            lambda *a: sum(jnp.vdot(g, d) for g, d in zip(grad(*a), dots, strict=True)), every
        )
        return jax.jit(lambda: (grad(*args), over(*batched), again(*args)))()

    same(program(primitives), program(jax_index))


@pytest.mark.parametrize(("name", "group"), LINEAR, ids=str)
def test_linear_transpose(device, point, name, group):
    args, _, _ = point(name)
    of, dense = (f for f in (CASES[name][0](primitives), CASES[name][1]))

    def only(f):
        def of_group(*values):
            full = dict(zip(group, values, strict=True))
            return f(*(full.get(i, a) for i, a in enumerate(args)))

        return of_group

    given = [args[i] for i in group]
    ct = jnp.sin(dense(*args))
    expected = jax.vjp(only(dense), *given)[1](ct)
    for f in (only(of), jax.jit(only(of))):
        for a, b in zip(jax.linear_transpose(f, *given)(ct), expected, strict=True):
            close(a, b)
    over = jax.linear_transpose(jax.vmap(only(of)), *(jnp.stack([g, g]) for g in given))
    close(over(jnp.stack([ct, 2 * ct]))[0][1], 2 * expected[0])


@pytest.mark.parametrize("name", ["segment_max", "segment_softmax", "gat_attention"])
def test_what_is_not_linear_is_not_transposed(device, point, name):
    args, _, _ = point(name)
    of = CASES[name][0](primitives)
    with pytest.raises(TypeError, match="must be linear in the operands"):
        jax.linear_transpose(of, *args)(of(*args))


def test_a_product_is_not_linear_in_both_factors(device):
    x, w = jnp.ones((3, 2)), jnp.ones(6)
    transposed = jax.linear_transpose(lambda x, w: primitives.spmm(GRAPH, x, w), x, w)
    with pytest.raises(TypeError, match="weighted_sum: the function must be linear"):
        transposed(jnp.ones((4, 2)))


def test_an_energy_of_a_graph(device, rng):
    senders, receivers = rng.integers(0, 6, 10), rng.integers(0, 6, 10)
    with oracle.x64():
        S, R = (jnp.asarray(np.eye(6)[ids]) for ids in (senders, receivers))
        h, t, u = (jnp.asarray(rng.standard_normal(6)) for _ in range(3))

        def energy(h):
            return (primitives.segment_sum(jnp.sin(h[senders] * h[receivers]), receivers, 6) ** 2).sum()

        def dense(h):
            return ((R.T @ jnp.sin((S @ h) * (R @ h))) ** 2).sum()

        def derivatives(f):
            product = lambda v: jax.jvp(jax.grad(f), (v,), (t,))[1]  # noqa: E731
            return (
                jax.jvp(f, (h,), (t,)),
                jax.linearize(f, h)[1](t),
                jax.jacfwd(jax.grad(f))(h),
                product(h),
                jax.grad(lambda v: jnp.vdot(jax.grad(f)(v), t))(h),
                jax.jvp(product, (h,), (u,))[1],
                jax.grad(lambda v: jnp.vdot(product(v), u))(h),
            )

        expected = jax.jit(lambda: derivatives(dense))()
        for actual in (jax.jit(lambda: derivatives(energy))(), derivatives(energy)):
            jax.tree.map(close, actual, expected)


def test_hessians_of_a_sum_of_squares_are_exact(device):
    v, ids = jnp.array([0.0, 1.0, 2.0]), jnp.array([0, 0, 1])
    energy = lambda v: (primitives.segment_sum(v, ids, 2) ** 2).sum()  # noqa: E731
    expected = [[2, 2, 0], [2, 2, 0], [0, 0, 2]]
    nested = [jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jacfwd(f))]
    for second in nested:
        assert second(energy)(v).tolist() == jax.jit(second(energy))(v).tolist() == expected
    # Half the squared norm of the gradient has the gradient H g.
    of_norm = jax.grad(lambda v: (jax.grad(energy)(v) ** 2).sum() / 2)
    assert of_norm(v).tolist() == jax.jit(of_norm)(v).tolist() == [8, 8, 8]


def float0(tree):
    """Tangents of a tree of integers."""
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, jax.dtypes.float0), tree)


def test_integer_operands(device):
    y, ids = jnp.arange(1.0, 8.0), jnp.asarray(IDS)
    of = lambda y, index: (primitives.segment_sum(y, index, NUM_ROWS) ** 2).sum()  # noqa: E731
    expected = jax.grad(lambda y: (jax_index.segment_sum(y, PLAN) ** 2).sum())(y)
    for index in (ids, PLAN):
        for f in (of, jax.jit(of)):
            oracle.assert_same(jax.grad(f)(y, index), expected)
            _, tangent = jax.jvp(f, (y, index), (y, float0(index)))
            assert tangent == jnp.vdot(expected, y)
            grads = jax.grad(f, argnums=(0, 1), allow_int=True)(y, index)
            oracle.assert_same(grads[0], expected)
            assert {leaf.dtype for leaf in jax.tree.leaves(grads[1])} == {jax.dtypes.float0}
            assert jax.tree.structure(grads[1]) == jax.tree.structure(index)
    # Integers that are reduced have no derivative, and are no obstacle to that of the rest.
    whole = jnp.arange(7)
    for op in (primitives.segment_sum, primitives.segment_mean, primitives.segment_max):
        tangent = jax.jvp(lambda z: op(z, PLAN), (whole,), (float0(whole),))[1]
        if op is primitives.segment_mean:
            assert not tangent.any()
        else:
            assert tangent.dtype == jax.dtypes.float0
        mixed = lambda y: (op(whole, PLAN) * jnp.float32(2)).sum() * y.sum()  # noqa: E731
        del mixed
