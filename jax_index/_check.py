# SPDX-License-Identifier: Apache-2.0
"""Argument checks. Every error of the public API is worded here, and in the same way."""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

MAX_SIZE = 2**31 - 1


def fail(
    kind: type[Exception], op: str, argument: str, expected: str, given: str, fix: str
) -> NoReturn:
    """Raise `kind` with the one wording of all errors: op, argument, expected, given, fix."""
    raise kind(f"jax_index.{op}: {argument} must be {expected}, got {given}. {fix}")


def describe(value: Any) -> str:
    """Name a value shortly: its type, and shape and dtype where it has them."""
    if isinstance(value, jax.core.Tracer):
        return f"a traced array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, bool | int | float | complex | str | None):
        return repr(value)
    return f"an object of type {type(value).__name__}"


def array(op: str, argument: str, value: Any) -> jax.Array:
    """Turn an array-like into a JAX array, as jax.numpy does."""
    if isinstance(value, jax.Array):
        return value
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        fix = f"Pass something that jax.numpy.asarray accepts ({error})."
        kind = ValueError if isinstance(error, OverflowError) else TypeError
        fail(kind, op, argument, "an array", describe(value), fix)


def size(op: str, argument: str, value: Any) -> int:
    """Check a static size: a whole number in [0, 2**31 - 1]."""
    expected = f"a whole number from 0 to {MAX_SIZE}"
    if isinstance(value, jax.core.Tracer):
        fix = "Sizes are part of the program: pass a Python int, or mark the argument static."
        fail(TypeError, op, argument, expected, describe(value), fix)
    fix = f"Pass {argument} as a Python int."
    if isinstance(value, bool | np.bool_):
        fail(TypeError, op, argument, expected, repr(value), fix)
    try:
        number = operator.index(value)
    except TypeError:
        fail(TypeError, op, argument, expected, describe(value), fix)
    if not 0 <= number <= MAX_SIZE:
        fix = f"Pass {argument} in that range; sizes are 32-bit."
        fail(ValueError, op, argument, expected, str(number), fix)
    return number


def flag(op: str, argument: str, value: Any) -> bool:
    """Check a Python bool."""
    if not isinstance(value, bool):
        fix = "It is part of the program: pass it as a Python bool."
        fail(TypeError, op, argument, "True or False", describe(value), fix)
    return value


def axis(op: str, value: Any, ndim: int, argument: str) -> int:
    """Check an axis of an array with `ndim` dimensions and make it non-negative."""
    if ndim == 0:
        fix = "Give it a leading axis of rows, for example with jax.numpy.atleast_1d."
        fail(ValueError, op, argument, "an array with at least one axis", "a scalar", fix)
    expected = f"an axis of {argument}, from {-ndim} to {ndim - 1}"
    fix = "Pass axis as a Python int in that range."
    if isinstance(value, bool | np.bool_):
        fail(TypeError, op, "axis", expected, repr(value), fix)
    try:
        number = operator.index(value)
    except TypeError:
        fail(TypeError, op, "axis", expected, describe(value), fix)
    if not -ndim <= number < ndim:
        fail(ValueError, op, "axis", expected, str(number), fix)
    return number % ndim


PLAN_FIX = "Use the plan that was made for these ids, or pass another axis."
GRAPH_FIX = "Use the graph that was made for these nodes and edges."


def int32_leaf(
    op: str, argument: str, leaf: Any, shape: tuple[int, ...], kind: str, maker: str
) -> None:
    """Check an array of a plan or graph (`kind`), which `maker` made."""
    if getattr(leaf, "shape", None) == shape and leaf.dtype == np.int32:
        return
    stacked = getattr(leaf, "ndim", 0) == len(shape) + 1
    fix = (
        f"A stacked {kind} goes through jax.vmap or jax.lax.scan."
        if stacked
        else f"Pass the {kind} as {maker} returned it."
    )
    expected = f"an int32 array of shape {shape}"
    fail(TypeError, op, argument, expected, describe(leaf), fix)


def rows(
    op: str,
    argument: str,
    value: jax.Array,
    axis: int,
    count: int,
    what: str,
    fix: str = PLAN_FIX,
) -> None:
    """Check that `value` has `count` entries along `axis`."""
    if value.shape[axis] != count:
        expected = f"an array with {count} entries on axis {axis} ({what})"
        fail(ValueError, op, argument, expected, f"shape {value.shape}", fix)
