# SPDX-License-Identifier: Apache-2.0
"""Calls that the ops refuse, with the kind and the text of the error. Run by test_errors.py."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import gather, make_plan, make_plan_from_indptr, scatter_add


def plan():
    return make_plan([0, 1, 1], 2)


def f32(*shape):
    return jnp.ones(shape, jnp.float32)


def i32(*shape):
    return jnp.ones(shape, jnp.int32)


def traced(fn, *arguments):
    """Call fn with traced arguments."""
    return jax.jit(fn)(*arguments)


def keys(count):
    return jax.random.split(jax.random.key(0), count)


LIST = "Pass a one-dimensional list or array of integers."
SIZE = "a whole number from 0 to 2147483647"
STATIC = "Sizes are part of the program: pass a Python int, or mark the argument static."
DROP = "Use mode='drop' if such ids are padding."
WRAP = "-1 never wraps; use 'drop' for padding."
CSR = "Pass the n + 1 row bounds of a CSR matrix."
SPLIT = "Split the edges: positions are 32-bit."
FILL = "Pass a Python or NumPy scalar of that dtype."
FILL_STATIC = "Pass a Python or NumPy scalar: it is part of the program."
SCALAR = "Give it a leading axis of rows, for example with jax.numpy.atleast_1d."
AXIS = "Pass axis as a Python int in that range."
ROWS = "Use the plan that was made for these ids, or pass another axis."
MADE = "The plan was made with a mode already."
WHOLE = "Pass the plan as make_plan returned it."

# (call, kind of error, text)
MAKE_PLAN = [
    (
        lambda: make_plan([0, 5, 1], 2),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[1] = 5. {DROP}",
    ),
    (
        lambda: make_plan([1, 0, -1, -2], 2),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[2] = -1. {DROP}",
    ),
    (
        lambda: make_plan([0], 0),
        IndexError,
        f"every id must be in [0, 0) (num_rows is 0), got ids[0] = 0. {DROP}",
    ),
    (
        lambda: make_plan(np.array([1, 2**32], np.int64), 2),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[1] = 4294967296. {DROP}",
    ),
    (
        lambda: make_plan(np.array([0, 2**63 + 7], np.uint64), 2),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[1] = 9223372036854775815. {DROP}",
    ),
    (
        lambda: make_plan([2**64], 2),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[0] = 18446744073709551616. {DROP}",
    ),
    (
        lambda: make_plan([0, 2**63, -1], 2),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[1] = 9223372036854775808. {DROP}",
    ),
    (
        lambda: make_plan(jnp.asarray([0, 3]), 2),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[1] = 3. {DROP}",
    ),
    (
        lambda: make_plan([0.0, 1.0], 2),
        TypeError,
        f"ids must be an integer array, got dtype float64. {LIST}",
    ),
    (
        lambda: make_plan(np.zeros(0), 2),
        TypeError,
        f"ids must be an integer array, got dtype float64. {LIST}",
    ),
    (
        lambda: make_plan([True, False], 2),
        TypeError,
        "ids must be an integer array, got dtype bool. "
        "Positions of a mask are numpy.flatnonzero(mask).",
    ),
    (
        lambda: make_plan(jnp.asarray([True]), 2),
        TypeError,
        "ids must be an integer array, got dtype bool. "
        "Positions of a mask are numpy.flatnonzero(mask).",
    ),
    (
        lambda: make_plan("ab", 2),
        TypeError,
        f"ids must be an integer array, got 'ab'. {LIST}",
    ),
    (
        lambda: make_plan(None, 2),
        TypeError,
        f"ids must be an integer array, got None. {LIST}",
    ),
    (
        lambda: make_plan({0: 1}, 2),
        TypeError,
        f"ids must be an integer array, got an object of type dict. {LIST}",
    ),
    (
        lambda: make_plan(plan(), 2),
        TypeError,
        f"ids must be an integer array, got an object of type IndexPlan. {LIST}",
    ),
    (
        lambda: make_plan([0, None], 2),
        TypeError,
        f"ids must be an integer array, got dtype object. {LIST}",
    ),
    (
        lambda: make_plan([2**70, 0.5], 2),
        TypeError,
        f"ids must be an integer array, got dtype object. {LIST}",
    ),
    (
        lambda: make_plan(keys(3), 2),
        TypeError,
        f"ids must be an integer array, got an array of shape (3,) and dtype key<fry>. {LIST}",
    ),
    (
        lambda: make_plan(np.ma.masked_array([0, 1], [False, True]), 2),
        TypeError,
        "ids must be an integer array, got a masked array. "
        "Fill the masked ids and drop them: ids.filled(-1) with mode='drop'.",
    ),
    (
        lambda: make_plan(1, 2),
        ValueError,
        f"ids must be one-dimensional, got shape (). {LIST}",
    ),
    (
        lambda: make_plan([[0, 1]], 2),
        ValueError,
        f"ids must be one-dimensional, got shape (1, 2). {LIST}",
    ),
    (
        lambda: make_plan([[0], [1, 1]], 2),
        ValueError,
        f"ids must be one-dimensional, got a ragged sequence. {LIST}",
    ),
    (
        lambda: make_plan([0], 2.0),
        TypeError,
        f"num_rows must be {SIZE}, got 2.0. Pass num_rows as a Python int.",
    ),
    (
        lambda: make_plan([0], None),
        TypeError,
        f"num_rows must be {SIZE}, got None. Pass num_rows as a Python int.",
    ),
    (
        lambda: make_plan([0], True),
        TypeError,
        f"num_rows must be {SIZE}, got True. Pass num_rows as a Python int.",
    ),
    (
        lambda: make_plan([0], f32(2)),
        TypeError,
        f"num_rows must be {SIZE}, got an array of shape (2,) and dtype float32. "
        "Pass num_rows as a Python int.",
    ),
    (
        lambda: traced(lambda n: make_plan([0], n), 2),
        TypeError,
        f"num_rows must be {SIZE}, got a traced array of shape () and dtype int32. {STATIC}",
    ),
    (
        lambda: make_plan([0], -1),
        ValueError,
        f"num_rows must be {SIZE}, got -1. Pass num_rows in that range; sizes are 32-bit.",
    ),
    (
        lambda: make_plan([0], 2**31),
        ValueError,
        f"num_rows must be {SIZE}, got 2147483648. Pass num_rows in that range; sizes are 32-bit.",
    ),
    (
        lambda: make_plan([0], 2, mode="clip"),
        ValueError,
        f"mode must be 'raise' or 'drop', got 'clip'. {WRAP}",
    ),
    (
        lambda: make_plan([0], 2, mode=None),
        ValueError,
        f"mode must be 'raise' or 'drop', got None. {WRAP}",
    ),
    (
        lambda: traced(lambda i: make_plan(i, 2), i32(3)),
        ValueError,
        "mode must be 'drop' for traced ids, got 'raise'. "
        "Values of a traced array cannot raise: pass mode='drop'.",
    ),
    (
        lambda: traced(lambda i: make_plan(i, 2, mode="drop"), f32(3)),
        TypeError,
        "ids must be an integer array, got dtype float32. "
        "Pass a one-dimensional array of integers.",
    ),
    (
        lambda: traced(lambda i: make_plan(i, 2, mode="drop"), f32(3) > 0),
        TypeError,
        "ids must be an integer array, got dtype bool. Pass a one-dimensional array of integers.",
    ),
    (
        lambda: traced(lambda i: make_plan(i, 2, mode="drop"), i32(3, 2)),
        ValueError,
        "ids must be one-dimensional, got shape (3, 2). "
        "Pass a one-dimensional array of integers; use vmap for a batch.",
    ),
    (
        lambda: traced(lambda i: make_plan([i, i], 2, mode="drop"), 1),
        TypeError,
        "ids must be an integer array, got an object of type list. "
        "Make one array of them first, with jax.numpy.stack.",
    ),
]

FROM_INDPTR = [
    (
        lambda: make_plan_from_indptr([]),
        ValueError,
        f"indptr must be one entry at least, got an empty array. {CSR}",
    ),
    (
        lambda: make_plan_from_indptr([1, 2]),
        ValueError,
        f"indptr must be 0 at its start, got indptr[0] = 1. {CSR}",
    ),
    (
        lambda: make_plan_from_indptr([0, 2, 1]),
        ValueError,
        f"indptr must be non-decreasing, got indptr[1] = 2 and indptr[2] = 1. {CSR}",
    ),
    (
        lambda: make_plan_from_indptr([0, 2**31]),
        ValueError,
        f"indptr must be at most 2147483647 at its end, got 2147483648. {SPLIT}",
    ),
    (
        lambda: make_plan_from_indptr([0, 2**70]),
        ValueError,
        f"indptr must be at most 2147483647 at its end, got 1180591620717411303424. {SPLIT}",
    ),
    (
        lambda: make_plan_from_indptr([[0]]),
        ValueError,
        f"indptr must be one-dimensional, got shape (1, 1). {LIST}",
    ),
    (
        lambda: make_plan_from_indptr([0.0, 1.0]),
        TypeError,
        f"indptr must be an integer array, got dtype float64. {LIST}",
    ),
    (
        lambda: make_plan_from_indptr(None),
        TypeError,
        f"indptr must be an integer array, got None. {LIST}",
    ),
    (
        lambda: traced(make_plan_from_indptr, i32(3)),
        TypeError,
        "indptr must be concrete, got a traced array of shape (3,) and dtype int32. "
        "Build the plan outside of jit and pass it as an argument.",
    ),
]


def with_leaf(name, leaf):
    return dataclasses.replace(plan(), **{name: leaf})


GATHER = [
    (
        lambda: gather(f32(2), plan(), mode="drop"),
        ValueError,
        f"mode must be None with a plan, got 'drop'. {MADE}",
    ),
    (
        lambda: gather(f32(3, 3), plan()),
        ValueError,
        "x must be an array with 2 entries on axis 0 (the plan's num_rows), "
        f"got shape (3, 3). {ROWS}",
    ),
    (
        lambda: gather(f32(2, 3), plan(), axis=-1),
        ValueError,
        "x must be an array with 2 entries on axis 1 (the plan's num_rows), "
        f"got shape (2, 3). {ROWS}",
    ),
    (
        lambda: gather(f32(2, 3), plan(), axis=2),
        ValueError,
        f"axis must be an axis of x, from -2 to 1, got 2. {AXIS}",
    ),
    (
        lambda: gather(f32(2, 3), plan(), axis=-3),
        ValueError,
        f"axis must be an axis of x, from -2 to 1, got -3. {AXIS}",
    ),
    (
        lambda: gather(f32(2, 3), plan(), axis=1.0),
        TypeError,
        f"axis must be an axis of x, from -2 to 1, got 1.0. {AXIS}",
    ),
    (
        lambda: gather(f32(2, 3), plan(), axis=None),
        TypeError,
        f"axis must be an axis of x, from -2 to 1, got None. {AXIS}",
    ),
    (
        lambda: traced(lambda a: gather(f32(2, 3), plan(), axis=a), 0),
        TypeError,
        "axis must be an axis of x, from -2 to 1, "
        f"got a traced array of shape () and dtype int32. {AXIS}",
    ),
    (
        lambda: gather(1.0, plan()),
        ValueError,
        f"x must be an array with at least one axis, got a scalar. {SCALAR}",
    ),
    (
        lambda: gather(f32(2), None),
        TypeError,
        f"ids must be an integer array, got None. {LIST}",
    ),
    (
        lambda: gather(f32(2), [0, 9]),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[1] = 9. {DROP}",
    ),
    (
        lambda: gather(f32(2, 5), [0, 5], axis=1),
        IndexError,
        f"every id must be in [0, 5) (num_rows is 5), got ids[1] = 5. {DROP}",
    ),
    (
        lambda: gather(f32(2), [0], mode="wrap"),
        ValueError,
        f"mode must be None, 'raise' or 'drop', got 'wrap'. {WRAP}",
    ),
    (
        lambda: traced(lambda i: gather(f32(2), i, mode="raise"), i32(3)),
        ValueError,
        "mode must be 'drop' for traced ids, got 'raise'. "
        "Values of a traced array cannot raise: pass mode='drop'.",
    ),
    (
        lambda: gather(f32(2), with_leaf("ids", f32(3))),
        TypeError,
        "plan.ids must be an int32 array of shape (3,), "
        f"got an array of shape (3,) and dtype float32. {WHOLE}",
    ),
    (
        lambda: gather(f32(2), with_leaf("tasks", i32(2, 2))),
        TypeError,
        "plan.tasks must be an int32 array of shape (1, 2), "
        f"got an array of shape (2, 2) and dtype int32. {WHOLE}",
    ),
    (
        lambda: gather(f32(2), with_leaf("indptr", None)),
        TypeError,
        f"plan.indptr must be an int32 array of shape (3,), got None. {WHOLE}",
    ),
    (
        lambda: gather(f32(2), with_leaf("perm", np.ones(3, np.int64))),
        TypeError,
        "plan.perm must be an int32 array of shape (3,), "
        f"got an array of shape (3,) and dtype int64. {WHOLE}",
    ),
    (
        lambda: gather(f32(2), jax.tree.map(lambda a: jnp.stack([a, a]), plan())),
        TypeError,
        "plan.ids must be an int32 array of shape (3,), "
        "got an array of shape (2, 3) and dtype int32. "
        "A stacked plan goes through jax.vmap or jax.lax.scan.",
    ),
]

SCATTER_ADD = [
    (
        lambda: scatter_add(f32(2, 3), plan()),
        ValueError,
        "y must be an array with 3 entries on axis 0 (one for each edge of the plan), "
        f"got shape (2, 3). {ROWS}",
    ),
    (
        lambda: scatter_add(f32(3, 2), [0, 1], num_rows=2),
        ValueError,
        "y must be an array with 2 entries on axis 0 (one for each edge of the plan), "
        f"got shape (3, 2). {ROWS}",
    ),
    (
        lambda: scatter_add(f32(3) > 0, plan()),
        TypeError,
        "y must be of a numeric dtype, got dtype bool. Count with y.astype(jnp.int32).",
    ),
    (
        lambda: scatter_add(keys(3), plan()),
        TypeError,
        "y must be of a numeric dtype, got dtype key<fry>. Only numbers can be summed.",
    ),
    (
        lambda: scatter_add(np.zeros(3, jax.dtypes.float0), plan()),
        TypeError,
        "y must be of a numeric dtype, got dtype float0. Only numbers can be summed.",
    ),
    (
        lambda: scatter_add(f32(3), [0, 1, 1]),
        ValueError,
        "num_rows must be given with raw ids, got None. Pass num_rows=, or a plan.",
    ),
    (
        lambda: traced(lambda i: scatter_add(f32(3), i), i32(3)),
        ValueError,
        "num_rows must be given with raw ids, got None. Pass num_rows=, or a plan.",
    ),
    (
        lambda: scatter_add(f32(3), plan(), num_rows=3),
        ValueError,
        "num_rows must be None or the plan's 2, got 3. "
        "Leave num_rows out, or use the plan made for it.",
    ),
    (
        lambda: scatter_add(f32(3), plan(), num_rows=2.0),
        TypeError,
        f"num_rows must be {SIZE}, got 2.0. Pass num_rows as a Python int.",
    ),
    (
        lambda: traced(lambda n: scatter_add(f32(3), [0, 1, 1], num_rows=n), 2),
        TypeError,
        f"num_rows must be {SIZE}, got a traced array of shape () and dtype int32. {STATIC}",
    ),
    (
        lambda: scatter_add(f32(3), [0, 1, 2], num_rows=2),
        IndexError,
        f"every id must be in [0, 2) (num_rows is 2), got ids[2] = 2. {DROP}",
    ),
    (
        lambda: scatter_add(f32(3), plan(), mode="raise"),
        ValueError,
        f"mode must be None with a plan, got 'raise'. {MADE}",
    ),
    (
        lambda: scatter_add(f32(3), plan(), axis=5),
        ValueError,
        f"axis must be an axis of y, from -1 to 0, got 5. {AXIS}",
    ),
    (
        lambda: scatter_add(1, plan()),
        ValueError,
        f"y must be an array with at least one axis, got a scalar. {SCALAR}",
    ),
]
