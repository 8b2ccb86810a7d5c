# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E731 (short functions read best in place)
"""vmap of data and plans: one call, no loop and no copy; and every control-flow transformation."""

from __future__ import annotations

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index

from . import cases, oracle

IDS = np.array([3, 0, 3, 5, -1, 1, 3])
M, N = IDS.size, 5


def make_plan(ids=IDS, num_rows=N):
    return jax_index.make_plan(ids, num_rows, mode="drop").generic


def stack(plans):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *plans)


def plans_of(rng, *shape):
    """Random ids `[*shape, M]` and their plans, stacked."""
    ids = rng.integers(-1, N + 1, (*shape, M))
    flat = [make_plan(each) for each in ids.reshape(-1, M)]
    stacked = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), stack(flat))
    return ids, stacked


def moving_operations(text):
    """The operations of a program's text, without those that only give an array another shape."""
    found = []
    for line in text.splitlines():
        # What stands behind # is an attribute.
        for name in re.findall(r"(?<!#)stablehlo\.(\w+)", line):
            sizes = [
                np.prod([int(size) for size in shape.split("x")[:-1]], dtype=int)
                for shape in re.findall(r"tensor<([^>]*)>", line.rpartition(" : ")[2])
            ]
            reshaped = name in ("reshape", "broadcast_in_dim") and sizes[0] == sizes[1]
            found += [] if reshaped or name == "constant" else [name]
    return found


def assert_one_call(fn, *arguments):
    """The program is one call of a kernel: no loop, no transposition, no broadcast. Returns it."""
    jitted = jax.jit(fn)
    assert moving_operations(jitted.lower(*arguments).as_text()) == ["custom_call"]
    return jitted(*arguments)


def test_the_check_of_programs_sees_what_moves():
    x = jnp.ones((3, 4))
    found = jax.jit(lambda v: (v.T, v[None], jnp.broadcast_to(v, (2, 3, 4)), v.reshape(12)))
    assert moving_operations(found.lower(x).as_text()) == ["transpose", "broadcast_in_dim"]


OPS = {
    # On a GPU XLA gathers where arrays are as small as here, unless told otherwise.
    "gather": (
        lambda x, p: jax_index.gather(x, p, lowering="kernel"),
        N,
        lambda x, ids: oracle.gather(x, ids),
    ),
    "scatter_add": (
        lambda y, p: jax_index.scatter_add(y, p),
        M,
        lambda y, ids: oracle.scatter_add(y, ids, N),
    ),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_vmap_over_data(device, rng, op, axis):
    call, rows, reference = OPS[op]
    plan = make_plan()
    value = cases.values(rng, (4, rows, 3), "float32")
    expected = np.stack([reference(v, IDS) for v in value])
    moved = jnp.asarray(np.moveaxis(value, 0, axis))
    out = assert_one_call(jax.vmap(lambda v, p: call(v, p), (axis, None), axis), moved, plan)
    oracle.assert_same(jnp.moveaxis(out, axis, 0), expected)
    for other in (0, 1, 2, -2):
        out = jax.vmap(lambda v: call(v, plan), axis, other)(moved)
        oracle.assert_same(jnp.moveaxis(out, other, 0), expected)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_over_data_and_plans(device, rng, op, axis):
    call, rows, reference = OPS[op]
    ids, plans = plans_of(rng, 4)
    value = cases.values(rng, (4, rows, 3), "float32")
    moved = jnp.asarray(np.moveaxis(value, 0, axis))
    out = assert_one_call(jax.vmap(call, (axis, 0), axis), moved, plans)
    expected = np.stack([reference(v, i) for v, i in zip(value, ids, strict=True)])
    oracle.assert_same(jnp.moveaxis(out, axis, 0), expected)


@pytest.mark.parametrize("op", OPS)
def test_vmap_over_plans_alone(device, rng, op):
    call, rows, reference = OPS[op]
    ids, plans = plans_of(rng, 4)
    value = cases.values(rng, (rows, 3), "float32")
    out = assert_one_call(jax.vmap(call, (None, 0)), jnp.asarray(value), plans)
    oracle.assert_same(out, np.stack([reference(value, i) for i in ids]))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "maps",
    [
        # (in_axes of data, in_axes of the plan), from the outermost map to the innermost.
        [(0, None), (0, None)],
        [(0, 0), (0, None)],
        [(0, None), (0, 0)],
        [(0, 0), (0, 0)],
        [(None, 0), (0, None)],
        [(0, None), (None, 0)],
        [(None, 0), (None, 0)],
        [(0, 0), (None, 0), (0, None)],
    ],
    ids=str,
)
def test_nested_vmap(device, rng, op, maps):
    call, rows, reference = OPS[op]
    sizes = [2, 3, 4][: len(maps)]
    data_shape = [s for s, (d, _) in zip(sizes, maps, strict=True) if d is not None]
    plan_shape = [s for s, (_, p) in zip(sizes, maps, strict=True) if p is not None]
    value = cases.values(rng, (*data_shape, rows, 3), "float32")
    if plan_shape:
        ids, plan = plans_of(rng, *plan_shape)
    else:
        ids, plan = IDS, make_plan()
    mapped = call
    for axes in reversed(maps):
        mapped = jax.vmap(mapped, axes)
    out = assert_one_call(mapped, jnp.asarray(value), plan)
    for index in itertools.product(*map(range, sizes)):
        data_at = tuple(i for i, (d, _) in zip(index, maps, strict=True) if d is not None)
        plan_at = tuple(i for i, (_, p) in zip(index, maps, strict=True) if p is not None)
        oracle.assert_same(out[index], reference(value[data_at], ids[plan_at]))


def test_vmap_of_index_add(device, rng):
    ids, plans = plans_of(rng, 4)
    x = cases.values(rng, (4, N, 3), "float32")
    y = cases.values(rng, (4, M, 3), "float32")
    call = lambda x, p, y: jax_index.index_add(x, p, y)
    for x_axis, p_axis, y_axis in itertools.product((0, None), repeat=3):
        if x_axis is p_axis is y_axis is None:
            continue
        given = (
            jnp.asarray(x if x_axis == 0 else x[0]),
            plans if p_axis == 0 else jax.tree.map(lambda leaf: leaf[0], plans),
            jnp.asarray(y if y_axis == 0 else y[0]),
        )
        out = assert_one_call(jax.vmap(call, (x_axis, p_axis, y_axis)), *given)
        for k in range(4):
            at = [k if axis == 0 else 0 for axis in (x_axis, p_axis, y_axis)]
            oracle.assert_same(out[k], oracle.index_add(x[at[0]], y[at[2]], ids[at[1]]))


def test_vmap_of_index_add_whose_operands_disagree(device, rng):
    plan = make_plan()
    x = cases.values(rng, (N, 4), "float32")
    y = cases.values(rng, (4, M), "float32")
    out = jax.vmap(lambda a, b: jax_index.index_add(a, plan, b), (1, 0))(x, y)
    for k in range(4):
        oracle.assert_same(out[k], oracle.index_add(x[:, k], y[k], IDS))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_vmap_beside_an_axis(device, rng, axis):
    ids, plans = plans_of(rng, 2)
    for op, (_, rows, _) in OPS.items():
        shape = [4, 4]
        shape[axis] = rows
        value = cases.values(rng, (2, *shape), "bfloat16")
        how = {"lowering": "kernel"} if op == "gather" else {}
        call = lambda v, p, op=op, how=how: getattr(jax_index, op)(v, p, axis=axis, **how)
        out = assert_one_call(jax.vmap(call), jnp.asarray(value), plans)
        for k in range(2):
            expected = (
                oracle.gather(value[k], ids[k], axis)
                if op == "gather"
                else oracle.scatter_add(value[k], ids[k], N, axis)
            )
            oracle.assert_same(out[k], expected)


def test_vmap_of_every_size(device, rng):
    for size, width in ((1, 3), (0, 3), (3, 0), (1, 1), (7, 1)):
        ids, plans = plans_of(rng, max(size, 1))
        plans = jax.tree.map(lambda leaf, size=size: leaf[:size], plans)
        x = jnp.asarray(cases.values(rng, (size, N, width), "float32"))
        y = jnp.asarray(cases.values(rng, (size, M, width), "float32"))
        taken = jax.vmap(jax_index.gather)(x, plans)
        summed = jax.vmap(jax_index.scatter_add)(y, plans)
        shared = jax.vmap(jax_index.gather, (None, 0))(jnp.ones((N, width)), plans)
        assert taken.shape == shared.shape == (size, M, width)
        assert summed.shape == (size, N, width)
        for k in range(size):
            oracle.assert_same(taken[k], oracle.gather(x[k], ids[k]))
            oracle.assert_same(summed[k], oracle.scatter_add(y[k], ids[k], N))


def test_vmap_over_traced_ids(device, rng):
    ids = rng.integers(-1, N + 1, (3, M))
    y = cases.values(rng, (3, M, 2), "float32")
    out = jax.jit(jax.vmap(lambda v, i: jax_index.scatter_add(v, i, num_rows=N)))(y, ids)
    plans = jax.jit(jax.vmap(lambda i: jax_index.make_plan(i, N, mode="drop")))(ids)
    again = jax.vmap(jax_index.scatter_add)(jnp.asarray(y), plans)
    for k in range(3):
        oracle.assert_same(out[k], oracle.scatter_add(y[k], ids[k], N))
        oracle.assert_same(again[k], out[k])


def test_vmap_of_a_gradient_is_the_gradient_of_a_vmap(device, rng):
    ids, plans = plans_of(rng, 3)
    x = jnp.asarray(cases.values(rng, (3, N, 2), "float32"))
    ct = jnp.asarray(cases.values(rng, (3, M, 2), "float32"))
    back = lambda v, p, c: jax.vjp(lambda u: jax_index.gather(u, p), v)[1](c)[0]
    inside = assert_one_call(jax.vmap(back), x, plans, ct)
    outside = jax.vjp(lambda u: jax.vmap(jax_index.gather)(u, plans), x)[1](ct)[0]
    for k in range(3):
        expected = oracle.scatter_add(ct[k], ids[k], N)
        oracle.assert_same(inside[k], expected)
        oracle.assert_same(outside[k], expected)


def test_gradient_for_data_shared_by_a_batch(device, rng):
    ids, plans = plans_of(rng, 3)
    x = jnp.ones((N, 2))
    weight = jnp.asarray(cases.small_integers(rng, (3, M, 2), "float32"))
    loss = lambda v: (jax.vmap(jax_index.gather, (None, 0))(v, plans) * weight).sum()
    expected = sum(oracle.scatter_add(weight[k], ids[k], N) for k in range(3))
    oracle.assert_same(jax.grad(loss)(x), expected)
    oracle.assert_same(jax.jit(jax.grad(loss))(x), expected)


@pytest.mark.parametrize(("depth", "works"), [(8, True), (14, True), (26, False)])
def test_maps_that_alternate_between_data_and_plans(device, depth, works):
    """Such axes cannot be walked as one: there is a limit, and it is an error, not a crash."""
    call, data, plans = jax_index.scatter_add, (), ()
    for level in range(depth):
        call = jax.vmap(call, (0, None) if level % 2 else (None, 0))
        data, plans = ((2, *data), plans) if level % 2 else (data, (2, *plans))
    stacked = jax.tree.map(
        lambda leaf: jnp.broadcast_to(
            leaf.reshape((1,) * len(plans) + leaf.shape), plans + leaf.shape
        ),
        make_plan(),
    )
    y = jnp.ones((*data, M))
    if works:
        out = np.asarray(jax.jit(call)(y, stacked))
        assert (out == oracle.scatter_add(np.ones(M), IDS, N)).all()
    else:
        with pytest.raises(ValueError) as error:
            jax.eval_shape(call, y, stacked)
        assert str(error.value) == (
            "jax_index.scatter_add: data must be a batch of arrays of at most 24 axes, "
            "got 26 axes. Merge batch axes with reshape, or use jax.lax.map for the outer ones."
        )


def test_vmap_of_other_element_types(device, rng):
    for dtype in ("int8", "complex64", "float8_e4m3fn", "int4", "float4_e2m1fn"):
        ids, plans = plans_of(rng, 2)
        y = cases.values(rng, (2, M, 2), dtype)
        out = jax.vmap(jax_index.scatter_add)(jnp.asarray(y), plans)
        x = cases.values(rng, (N, 2), dtype)
        taken = jax.vmap(jax_index.gather, (None, 0))(jnp.asarray(x), plans)
        for k in range(2):
            oracle.assert_same(out[k], oracle.scatter_add(y[k], ids[k], N))
            oracle.assert_same(taken[k], oracle.gather(x, ids[k]))
    keys = jax.random.split(jax.random.key(0), (3, N))
    taken = jax.vmap(jax_index.gather, (0, None))(keys, make_plan(np.abs(IDS) % N))
    assert (jax.random.key_data(taken[1]) == jax.random.key_data(keys[1, np.abs(IDS) % N])).all()


def test_scan_over_plans_and_data(device, rng):
    ids, plans = plans_of(rng, 4)
    y = cases.small_integers(rng, (4, M, 2), "float32")

    def step(total, given):
        value, plan = given
        summed = jax_index.scatter_add(value, plan)
        return total + summed, summed

    total, each = jax.jit(lambda y, p: jax.lax.scan(step, jnp.zeros((N, 2)), (y, p)))(y, plans)
    expected = [oracle.scatter_add(y[k], ids[k], N) for k in range(4)]
    oracle.assert_same(each, np.stack(expected))
    oracle.assert_same(total, sum(expected))


def test_scan_with_a_plan_closed_over_or_carried(device, rng):
    plan = make_plan()
    x = jnp.asarray(cases.small_integers(rng, (N, 2), "float32"))
    step = lambda carry, p: jax_index.scatter_add(jax_index.gather(carry, p), p)
    expected = np.asarray(x)
    for _ in range(3):
        expected = oracle.scatter_add(oracle.gather(expected, IDS), IDS, N)
    closed = jax.lax.scan(lambda c, _: (step(c, plan), None), x, length=3)[0]
    (carried, kept), _ = jax.lax.scan(
        lambda c, _: ((step(c[0], c[1]), c[1]), None), (x, plan), length=3
    )
    looped = jax.lax.fori_loop(0, 3, lambda _, c: step(c, plan), x)
    for out in (closed, carried, looped):
        oracle.assert_same(out, expected)
    assert kept == plan
    loss = lambda v: jax.lax.scan(lambda c, _: (step(c, plan), None), v, length=3)[0].sum()
    S = (IDS[:, None] == np.arange(N)).astype(np.float32)
    matrix = np.linalg.matrix_power(S.T @ S, 3)
    oracle.assert_same(jax.jit(jax.grad(loss))(x), np.repeat(matrix.sum(0)[:, None], 2, 1))


def test_scan_that_builds_plans(device, rng):
    ids = rng.integers(-1, N + 1, (3, M)).astype(np.int32)
    step = lambda _, i: (None, jax_index.scatter_add(jnp.ones(M), i, num_rows=N))
    out = jax.lax.scan(step, None, jnp.asarray(ids))[1]
    oracle.assert_same(out, np.stack([oracle.scatter_add(np.ones(M, "f"), i, N) for i in ids]))


def test_remat(device, rng):
    plan = make_plan()
    x = jnp.asarray(cases.values(rng, (N, 2), "float32"))

    def layer(v, p):
        return jax_index.scatter_add(jnp.sin(jax_index.gather(v, p)), p)

    plain = jax.grad(lambda v: (layer(layer(v, plan), plan) ** 2).sum())(x)
    kept = jax.checkpoint(layer)
    for wrap in (lambda f: f, jax.jit):
        again = wrap(jax.grad(lambda v: (kept(kept(v, plan), plan) ** 2).sum()))(x)
        np.testing.assert_allclose(again, plain, rtol=1e-6, atol=1e-6)


def test_cond_and_switch_choose_a_plan(device, rng):
    other = np.array([0, 1, 2, 3, 4, 4, -1])
    plans = [make_plan(), make_plan(other)]
    y = jnp.asarray(cases.values(rng, (M,), "float32"))

    @jax.jit
    def run(which, y, first, second):
        chosen = jax.lax.cond(which, lambda a, b: a, lambda a, b: b, first, second)
        branch = lambda p: lambda v: jax_index.scatter_add(v, p)
        switched = jax.lax.switch(which.astype(jnp.int32), [branch(second), branch(first)], y)
        return jax_index.scatter_add(y, chosen), switched

    for which, ids in ((True, IDS), (False, other)):
        for out in run(jnp.asarray(which), y, *plans):
            oracle.assert_same(out, oracle.scatter_add(y, ids, N))


def test_eval_shape(device):
    plan = make_plan()
    shapes = jax.eval_shape(lambda p: p, plan)
    x = jax.ShapeDtypeStruct((N, 3), jnp.bfloat16)
    y = jax.ShapeDtypeStruct((M, 3), jnp.float32)
    out = jax.eval_shape(jax_index.gather, x, shapes)
    assert (out.shape, out.dtype) == ((M, 3), jnp.bfloat16)
    out = jax.eval_shape(jax_index.scatter_add, y, shapes)
    assert (out.shape, out.dtype) == ((N, 3), jnp.float32)
    with jax.numpy_dtype_promotion("standard"):
        out = jax.eval_shape(jax_index.index_add, x, shapes, y)
    assert (out.shape, out.dtype) == ((N, 3), jnp.float32)
