# SPDX-License-Identifier: Apache-2.0
"""Every refusal of the public API, with its whole text."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_index
from jax_index import gather, index_add, make_plan, scatter_add

from . import error_table, oracle
from .error_table import AXIS, DROP, FILL, FILL_STATIC, MADE, ROWS, SCALAR, f32, keys, plan, traced

# (dtype of x, fill value, kind of error, text after "a scalar that DTYPE can hold, got ")
FILLS = [
    ("float32", "a", TypeError, f"'a'. {FILL}"),
    ("float32", None, TypeError, f"None. {FILL}"),
    ("float32", 1j, TypeError, f"1j. {FILL}"),
    ("float32", 2**200, ValueError, f"{2**200}. {FILL}"),
    ("float32", 2**2000, ValueError, f"{2**2000}. {FILL}"),
    ("float32", [1], TypeError, f"an object of type list. {FILL_STATIC}"),
    ("float32", np.ones(2), TypeError, f"an array of shape (2,) and dtype float64. {FILL_STATIC}"),
    ("float32", 1e300, ValueError, f"1e+300. {FILL}"),
    ("float16", 70000, ValueError, f"70000. {FILL}"),
    ("bfloat16", -1e39, ValueError, f"-1e+39. {FILL}"),
    ("float8_e4m3fn", 1000.0, ValueError, f"1000.0. {FILL}"),
    ("float8_e4m3fn", float("inf"), ValueError, f"inf. {FILL}"),
    ("float8_e8m0fnu", -1.0, ValueError, f"-1.0. {FILL}"),
    ("float4_e2m1fn", float("nan"), ValueError, f"nan. {FILL}"),
    ("float4_e2m1fn", 7.5, ValueError, f"7.5. {FILL}"),
    ("complex64", 1e300j, ValueError, f"1e+300j. {FILL}"),
    ("int32", 0.5, ValueError, f"0.5. {FILL}"),
    ("int32", 2**31, ValueError, f"2147483648. {FILL}"),
    ("int32", float("inf"), ValueError, f"inf. {FILL}"),
    ("int32", float("nan"), ValueError, f"nan. {FILL}"),
    ("int32", 1 + 0j, TypeError, f"(1+0j). {FILL}"),
    ("uint8", -1, ValueError, f"-1. {FILL}"),
    ("int4", 8, ValueError, f"8. {FILL}"),
    ("uint2", 4, ValueError, f"4. {FILL}"),
    ("bool", 2, ValueError, f"2. {FILL}"),
]

INDEX_ADD = [
    (
        lambda: index_add(f32(2, 3), plan(), f32(2, 3)),
        ValueError,
        "y must be an array with 3 entries on axis 0 (one for each edge of the plan), "
        f"got shape (2, 3). {ROWS}",
    ),
    (
        lambda: index_add(f32(3, 3), plan(), f32(3, 3)),
        ValueError,
        "x must be an array with 2 entries on axis 0 (the plan's num_rows), "
        f"got shape (3, 3). {ROWS}",
    ),
    (
        lambda: index_add(f32(2, 3), plan(), f32(3, 2)),
        ValueError,
        "y must be an array of x's shape (2, 3) off axis 0, got shape (3, 2). "
        "Broadcast y to x's trailing shape first.",
    ),
    (
        lambda: index_add(f32(2, 3), plan(), 1.0),
        ValueError,
        "y must be an array of x's shape (2, 3) off axis 0, got shape (). "
        "Broadcast y to x's trailing shape first.",
    ),
    (
        lambda: index_add(f32(2) > 0, plan(), f32(3)),
        TypeError,
        "x must be of a numeric dtype, got dtype bool. Count with x.astype(jnp.int32).",
    ),
    (
        lambda: index_add(f32(2), plan(), f32(3) > 0),
        TypeError,
        "y must be of a numeric dtype, got dtype bool. Count with y.astype(jnp.int32).",
    ),
    (
        lambda: index_add(f32(2), [0, 1, 7], f32(3)),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[2] = 7. {DROP}",
    ),
    (
        lambda: index_add(f32(2), plan(), f32(3), mode="drop"),
        ValueError,
        f"mode must be None with a plan, got 'drop'. {MADE}",
    ),
    (
        lambda: index_add(1.0, plan(), f32(3)),
        ValueError,
        f"x must be an array with at least one axis, got a scalar. {SCALAR}",
    ),
    (
        lambda: index_add(f32(2), plan(), f32(3), axis="rows"),
        TypeError,
        f"axis must be an axis of x, from -1 to 0, got 'rows'. {AXIS}",
    ),
]

TABLE = [
    pytest.param(op, *case, id=f"{op}-{k}")
    for op, found in (
        ("make_plan", error_table.MAKE_PLAN),
        ("make_plan_from_indptr", error_table.FROM_INDPTR),
        ("gather", error_table.GATHER),
        ("scatter_add", error_table.SCATTER_ADD),
        ("index_add", INDEX_ADD),
    )
    for k, case in enumerate(found)
]


@pytest.mark.parametrize(("op", "call", "kind", "text"), TABLE)
def test_refusal(op, call, kind, text):
    with pytest.raises(kind) as refused:
        call()
    assert type(refused.value) is kind
    assert str(refused.value) == f"jax_index.{op}: {text}"


@pytest.mark.parametrize(("dtype", "fill", "kind", "text"), FILLS)
def test_refusal_of_a_fill_value(dtype, fill, kind, text):
    x = jnp.zeros((2,), dtype)
    expected = f"jax_index.gather: fill_value must be a scalar that {dtype} can hold, got {text}"
    for call in (gather, jax.jit(gather, static_argnames="fill_value")):
        if call is not gather and isinstance(fill, list | np.ndarray):
            continue
        with pytest.raises(kind) as refused:
            call(x, plan(), fill_value=fill)
        assert str(refused.value) == expected


def test_refusal_of_a_traced_fill_value():
    with pytest.raises(TypeError) as refused:
        traced(lambda f: gather(f32(2), plan(), fill_value=f), 1.0)
    assert str(refused.value) == (
        "jax_index.gather: fill_value must be a scalar that float32 can hold, "
        f"got a traced array of shape () and dtype float32. {FILL_STATIC}"
    )


def test_refusal_of_a_fill_value_for_keys():
    with pytest.raises(TypeError) as refused:
        gather(keys(2), plan(), fill_value=1)
    assert str(refused.value) == (
        "jax_index.gather: fill_value must be a scalar that key<fry> can hold, got 1. "
        + FILL_STATIC
    )


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (None, "None"),
        ("abc", "'abc'"),
        ([[1], [2, 3]], "an object of type list"),
        (object, "an object of type type"),
    ],
)
def test_refusal_of_what_is_no_array(value, given):
    # JAX's own reason is quoted; its wording is JAX's.
    for op, argument, call in (
        ("gather", "x", lambda: gather(value, plan())),
        ("scatter_add", "y", lambda: scatter_add(value, plan())),
        ("index_add", "x", lambda: index_add(value, plan(), f32(3))),
        ("index_add", "y", lambda: index_add(f32(2), plan(), value)),
    ):
        with pytest.raises(TypeError) as refused:
            call()
        text = str(refused.value)
        assert text.startswith(
            f"jax_index.{op}: {argument} must be an array, got {given}. "
            "Pass something that jax.numpy.asarray accepts ("
        )
        assert text.endswith(").")


def test_numbers_beyond_their_type_are_refused():
    with pytest.raises(ValueError) as refused:
        gather([2**40], [0])
    assert str(refused.value).startswith(
        "jax_index.gather: x must be an array, got an object of type list. "
        "Pass something that jax.numpy.asarray accepts ("
    )


def test_too_many_edges_are_refused_before_they_are_read():
    ids = np.broadcast_to(np.int8(0), (2**31,))
    with pytest.raises(ValueError) as refused:
        make_plan(ids, 1)
    assert str(refused.value) == (
        "jax_index.make_plan: ids must be at most 2147483647 entries, got 2147483648 entries. "
        "Split the edges: positions are 32-bit."
    )


def test_an_array_of_other_processes_is_refused(monkeypatch):
    ids = jnp.asarray([0, 1])
    monkeypatch.setattr(type(ids), "is_fully_addressable", property(lambda self: False))
    with pytest.raises(ValueError) as refused:
        make_plan(ids, 2)
    assert str(refused.value) == (
        "jax_index.make_plan: ids must be fully addressable, got an array spread over devices of "
        "other processes. Gather them first with "
        "jax.experimental.multihost_utils.process_allgather(ids, tiled=True), or build the plan "
        "from host ids in every process."
    )


def test_hashing_a_traced_plan_is_refused():
    text = (
        "jax_index.IndexPlan: self must be concrete, got a plan whose ids are a traced array of "
        "shape (3,) and dtype int32. Hash or compare the plan outside of jit, or pass it as an "
        "argument."
    )
    for use in (hash, lambda p: p == plan(), lambda p: plan() == p, lambda p: p.digest):
        with pytest.raises(TypeError) as refused:
            traced(lambda p, use=use: use(p) and 0, plan())
        assert str(refused.value) == text
    shapes = jax.eval_shape(lambda p: p, plan())
    with pytest.raises(TypeError, match="got a plan whose ids are an object of type Shape"):
        hash(shapes)


def test_strict_promotion_is_honoured():
    with pytest.raises(ValueError, match="no available implicit dtype promotion path"):
        index_add(f32(2), plan(), jnp.ones(3, jnp.bfloat16))
    with jax.numpy_dtype_promotion("standard"):
        assert index_add(f32(2), plan(), jnp.ones(3, jnp.bfloat16)).dtype == jnp.float32
        with pytest.raises(ValueError, match="no available implicit dtype promotion path"):
            index_add(jnp.ones(2, jnp.float8_e5m2), plan(), jnp.ones(3, jnp.float8_e4m3fn))


def test_refusals_come_at_trace_time():
    calls = [
        lambda: gather(f32(3), plan()),
        lambda: scatter_add(f32(2), plan()),
        lambda: index_add(f32(2), plan(), f32(2)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"^jax_index\."):
            jax.eval_shape(call)
        with pytest.raises(ValueError, match=r"^jax_index\."):
            jax.jit(call).lower()


def test_an_id_out_of_range_inside_jit_is_named_when_it_is_concrete():
    ids = jnp.asarray([0, 4])
    with pytest.raises(IndexError, match=r"got ids\[1\] = 4\."):
        jax.jit(lambda x: gather(x, ids))(f32(2))
    with oracle.x64(), pytest.raises(IndexError, match=r"got ids\[1\] = 8589934592\."):
        gather(f32(2), jnp.asarray([0, 2**33], jnp.int64))


def test_frozen_plans_are_not_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan().num_rows = 3


def test_the_package_has_these_names_alone():
    assert set(jax_index.__all__) <= set(dir(jax_index))
    with pytest.raises(AttributeError):
        jax_index.no_such_op  # noqa: B018
