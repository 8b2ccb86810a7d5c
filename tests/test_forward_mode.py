# SPDX-License-Identifier: Apache-2.0
"""jax_index.primitives: every op in every mode of differentiation, and the mode itself."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg, gmres

import jax_index
from jax_index import _ad, primitives
from tests import oracle
from tests.forward_cases import CASES, GRAPH, IDS, NUM_ROWS, PLAN, one_hot

NAMES = list(CASES)
LINEAR = [(name, group) for name in NAMES for group in CASES[name][3]]
# Third derivatives of these are those of their parts, which other cases have, and take long.
NO_THIRD = ("graph_attention, every array", "edge_softmax", "segment_prod")
NO_THIRD += ("gat_attention", "gat_attention, version 2")
# Programs here run once: they are not worth optimising.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
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
    value, jacobian = jit(lambda v: (dense(v), jax.jacfwd(dense)(v)))(v)

    @jit
    def program(v, t, u):
        out, linear = jax.linearize(of, v)
        along = jax.vmap(lambda t: jax.jvp(of, (v,), (t,))[1])(jnp.stack([t, u]))
        return out, along, linear(t), jax.jacfwd(of)(v), jax.jacrev(of)(v)

    out, along, linear, forward, reverse = program(v, t, u)
    close(out, value)
    close(jax.jvp(of, (v,), (t,))[1], jacobian @ t)
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
        third = None if name in NO_THIRD else pull(push(pull(f)))(v)
        return jax.hessian(f)(v), jax.grad(push(f))(v), third

    hessian, product, third = jit(lambda: program(loss(name, primitives)))()
    dense = loss(name, None)
    expected, along = jit(lambda: (jax.hessian(dense)(v), push(push(push(dense)))(v)))()
    close(hessian, expected, atol=1e-11)
    close(product, expected @ t, atol=1e-11)
    if third is not None:
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
        return jit(lambda: (grad(*args), over(*batched), again(*args)))()

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
    for a, b in zip(jax.linear_transpose(only(of), *given)(ct), expected, strict=True):
        close(a, b)
    over = jax.linear_transpose(jit(jax.vmap(only(of))), *(jnp.stack([g, g]) for g in given))
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
            return (
                primitives.segment_sum(jnp.sin(h[senders] * h[receivers]), receivers, 6) ** 2
            ).sum()

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

        actual, expected = (jit(derivatives, static_argnums=0)(f) for f in (energy, dense))
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
    mixed = lambda y, z: (primitives.segment_max(z, PLAN) * 2).sum().astype(y.dtype) * y.sum()  # noqa: E731
    assert jax.jvp(mixed, (y, whole), (y, float0(whole)))[1] == mixed(y, whole)
    tangent = jax.jvp(lambda z: primitives.segment_sum(z, PLAN), (whole,), (float0(whole),))[1]
    assert tangent.dtype == jax.dtypes.float0
    of_mean = jax.grad(lambda z: primitives.segment_mean(z, PLAN).sum(), allow_int=True)(whole)
    assert of_mean.dtype == jax.dtypes.float0


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "complex64"])
def test_tangents_have_the_type_of_their_primals(device, rng, dtype):
    draw = lambda n: jnp.asarray(rng.integers(-4, 5, (n, 2)).astype(np.float32)).astype(dtype)  # noqa: E731
    x, y, dx, dy = draw(NUM_ROWS), draw(7), draw(NUM_ROWS), draw(7)
    of = lambda x, y: primitives.index_add(x, PLAN, y)  # noqa: E731
    # It is linear: the tangent is the op itself.
    oracle.assert_same(jax.jvp(of, (x, y), (dx, dy))[1], jax_index.index_add(dx, PLAN, dy))
    if dtype != "complex64":
        args, dots = (y,), (dy,)
        _, tangent = jax.jvp(lambda y: primitives.segment_softmax(y, PLAN), args, dots)
        wide = lambda y: jax_index.segment_softmax(y.astype(jnp.float32), PLAN)  # noqa: E731
        expected = jax.vjp(jax.vjp(wide, y)[1], jnp.zeros((7, 2)))[1]((dy,))[0]
        assert tangent.dtype == dtype
        atol = float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(tangent.astype(jnp.float32), expected, atol=4 * atol)


def solved(module, w, b, solve):
    """Solve (3 + Sᵀ W S) x = b, the product with the matrix made of ours."""
    matvec = lambda x: 3 * x + module.scatter_add(module.gather(x, PLAN) * w[:, None], PLAN)  # noqa: E731
    return jnp.sum(jnp.sin(solve(matvec, b)[0]))


@pytest.mark.parametrize("solver", ["cg", "gmres"])
def test_derivatives_of_iterative_solvers(device, rng, solver):
    with oracle.x64():
        w, b, t = (jnp.asarray(rng.standard_normal(s)) for s in (7, (NUM_ROWS, 2), 7))
        w = w**2
        S = one_hot(IDS, NUM_ROWS)
        iterate = {
            "cg": lambda A, b: cg(A, b, tol=1e-14),
            "gmres": lambda A, b: gmres(A, b, tol=1e-14, solve_method="batched"),
        }[solver]

        def dense(w):
            matrix = 3 * jnp.eye(NUM_ROWS) + S.T @ (S * w[:, None])
            return jnp.sum(jnp.sin(jnp.linalg.solve(matrix, b)))

        def derivatives(f):
            grad = jax.grad(f)
            return grad(w), jax.jvp(f, (w,), (t,))[1], jax.jvp(grad, (w,), (t,))[1]

        ours = lambda w: solved(primitives, w, b, iterate)  # noqa: E731
        actual, expected = (jit(derivatives, static_argnums=0)(f) for f in (ours, dense))
        jax.tree.map(functools.partial(close, rtol=1e-9, atol=1e-9), actual, expected)


def test_gauss_newton_products(device, point):
    (x, w), (dx, dw), _ = point("spmm")
    op, dense, _, _ = CASES["spmm"]

    def product(f):
        residuals, push = jax.linearize(lambda x, w: jnp.tanh(f(x, w)), x, w)
        pull = jax.linear_transpose(push, x, w)
        return residuals, pull(push(dx, dw))

    actual, expected = (jit(product, static_argnums=0)(f) for f in (op(primitives), dense))
    jax.tree.map(close, actual, expected)


def test_under_scan_remat_and_threads(device, point):
    (y,), (t,), _ = point("segment_softmax")

    def total(softmax):
        @jax.checkpoint
        def step(carry, _):
            return jnp.tanh(softmax(carry, PLAN) + carry), None

        return lambda y: jnp.sum(jax.lax.scan(step, y, length=3)[0] ** 2)

    ours = total(primitives.segment_softmax)
    dense = total(lambda y, plan: CASES["segment_softmax"][1](y))
    product = lambda f: jax.jvp(jax.grad(f), (y,), (t,))[1]  # noqa: E731
    close(jit(lambda: product(ours))(), jit(lambda: product(dense))())
    # The mode is that of the thread: another one's ops are not touched by it.
    with _ad.any_mode(), ThreadPoolExecutor(1) as pool:
        x = jnp.ones(NUM_ROWS, jnp.float32)
        failed = pool.submit(lambda: jax.jvp(lambda x: jax_index.gather(x, PLAN), (x,), (x,)))
        assert "can't apply forward-mode" in str(failed.exception())


# --- The mode -----------------------------------------------------------------------------------


def test_the_default_mode_has_no_forward_mode(device):
    x = jnp.ones((3, 2))
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        jax.jvp(lambda x: jax_index.gather(x, PLAN), (x,), (x,))
    # What ran in the other mode leaves no trace in this one.
    primitives.gather(x, PLAN)
    assert "custom_vjp" in str(jax.make_jaxpr(lambda x: jax_index.gather(x, PLAN))(x))
    assert "custom_vjp" not in str(jax.make_jaxpr(lambda x: primitives.gather(x, PLAN))(x))


CHILD = """
import jax, jax.numpy as jnp, jax_index
f = lambda v: (jax_index.segment_sum(v, [0, 0, 1], 2) ** 2).sum()
try:
    print(jax.hessian(f)(jnp.ones(3)).tolist())
except TypeError as error:
    print("forward-mode" in str(error))
print(jax.jacrev(jax.jacrev(f))(jnp.ones(3)).tolist())
"""


@pytest.mark.parametrize("mode", ["any", "", "forward"])
def test_the_mode_of_the_environment(mode):
    env = {**os.environ, "JAX_INDEX_AD": mode, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    hessian = "[[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 2.0]]"
    if mode == "forward":
        assert done.returncode != 0
        text = "JAX_INDEX_AD must be 'any' or 'reverse', got 'forward'. Leave it unset"
        assert text in done.stderr
    else:
        first = hessian if mode == "any" else "True"
        assert done.stdout.splitlines() == [first, hessian], done.stderr
