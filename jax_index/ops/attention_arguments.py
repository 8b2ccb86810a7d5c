# SPDX-License-Identifier: Apache-2.0
"""What the attention ops accept: checked, and in the types that they are computed in."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from jax_index import _check, _sharding
from jax_index._graph import Graph
from jax_index.ops.convert import convert
from jax_index.ops.graph_arguments import computed, per_edge
from jax_index.ops.pointwise import wide

# What is fixed of a call: scale, clip low and high, "softmax" or "sum", denominator offset.
Static = tuple[float, float, float, str, float]


def static_of(op: str, scale: Any, clip: Any, normalize: Any, denominator_offset: Any) -> Static:
    """Check what is fixed of a call."""
    if normalize not in ("softmax", "sum"):
        fix = "'sum' weighs with exp(score) as it is; 'softmax' subtracts the row's largest first."
        _check.fail(ValueError, op, "normalize", "'softmax' or 'sum'", repr(normalize), fix)
    low, high = -math.inf, math.inf
    if clip is not None:
        if not isinstance(clip, tuple | list) or len(clip) != 2:
            fix = "Pass clip=(-5.0, 5.0), for example."
            given = _check.describe(clip)
            _check.fail(TypeError, op, "clip", "None or (low, high)", given, fix)
        low, high = (number(op, "clip", bound) for bound in clip)
        if not low <= high:
            fix = "The lower bound stands first."
            _check.fail(ValueError, op, "clip", "(low, high), low <= high", str(clip), fix)
    offset = number(op, "denominator_offset", denominator_offset)
    return number(op, "scale", scale), low, high, normalize, offset


def number(op: str, argument: str, value: Any) -> float:
    """Check a Python number."""
    if isinstance(value, jax.core.Tracer):
        fix = "It is part of the program; multiply the scores by score_weights instead."
        _check.fail(TypeError, op, argument, "a Python number", _check.describe(value), fix)
    try:
        found = float(value)
    except (TypeError, ValueError):
        fix = f"Pass {argument} as a Python number."
        _check.fail(TypeError, op, argument, "a number", _check.describe(value), fix)
    if not math.isfinite(found) and argument != "clip":
        fix = "Every result would be NaN, or none would count: pass a finite number."
        _check.fail(ValueError, op, argument, "finite", repr(found), fix)
    return found


def features(op: str, name: str, value: Any, count: int, what: str) -> jax.Array:
    """Check an array of nodes, heads and features."""
    value = _check.array(op, name, value)
    expected = f"a float array [{count}, *batch, heads, features]"
    if not jnp.issubdtype(value.dtype, jnp.floating):
        fix = f"Convert it first: {name}.astype(jnp.float32)."
        _check.fail(TypeError, op, name, expected, _check.describe(value), fix)
    if value.ndim < 3:
        fix = f"For one head reshape it: {name}[:, None, :]."
        _check.fail(ValueError, op, name, expected, _check.describe(value), fix)
    _check.rows(op, name, value, 0, count, what, _check.GRAPH_FIX)
    return _sharding.whole(value, 0)


def edge_arrays(op: str, graph: Graph, shape: tuple[int, ...], dtype: Any, **given: Any) -> Any:
    """Check per-edge arrays, [m, *prefix] with axes of size 1 allowed, of the accumulator type."""
    out: list[Any] = []
    for name, value in given.items():
        if value is None:
            out.append(None)
            continue
        value = _check.array(op, name, value)
        # Axes of size 1 at the end are those of a shorter prefix.
        while value.ndim > 1 and value.shape[-1] == 1 and value.ndim <= len(shape) + 1:
            value = value.reshape(value.shape[:-1])
        ones = tuple(
            1 if d < value.ndim - 1 and value.shape[d + 1] == 1 else size
            for d, size in enumerate(shape)
        )
        value = per_edge(op, name, value, graph, ones, "[*batch, heads]", real=True)
        if not jnp.issubdtype(value.dtype, jnp.floating):
            value = convert(value, dtype)
        out.append(convert(value, dtype))
    return tuple(out)


def dot_arguments(
    op: str,
    graph: Graph,
    num_senders: int,
    q: Any,
    k: Any,
    v: Any,
    scale: Any,
    edges: Any,
    how: Any,
) -> tuple[Any, Any, Any, Any, Static, Any]:
    """Check what dot-product attention is given.

    Returns:
        q, k, v and the per-edge arrays in the types that are computed in, what is static, and the
        dtype of the result.
    """
    q = features(op, "q", q, graph.num_receivers, "one for each receiver")
    k = features(op, "k", k, num_senders, "one for each sender")
    v = features(op, "v", v, num_senders, "one for each sender")
    if k.shape[1:] != q.shape[1:]:
        fix = "Queries and keys have the same batch, heads and features."
        expected = f"an array of q's shape {q.shape} behind the first axis"
        _check.fail(ValueError, op, "k", expected, f"shape {k.shape}", fix)
    if v.shape[1:-1] != q.shape[1:-1]:
        fix = "Values have the batch and the heads of queries and keys."
        expected = f"an array of q's shape {q.shape} but for the last axis"
        _check.fail(ValueError, op, "v", expected, f"shape {v.shape}", fix)
    scale = 1 / math.sqrt(max(q.shape[-1], 1)) if scale is None else scale
    static = static_of(op, scale, **how)
    dtype = jnp.result_type(q, k, v)
    arrays = edge_arrays(op, graph, q.shape[1:-1], wide(dtype), **edges)
    return *(computed(x, dtype) for x in (q, k, v)), arrays, static, dtype


def gat_arguments(
    op: str,
    graph: Graph,
    num_senders: int,
    h_s: Any,
    h_r: Any,
    att: Any,
    slope: Any,
    version: Any,
    scale: Any,
    edges: Any,
    how: Any,
) -> tuple[Any, Any, Any, Any, Static, tuple[float, int], Any]:
    """Check what attention with additive scores is given.

    Returns:
        h_s, h_r, att and the per-edge arrays in the types that are computed in, what is static,
        (slope, version), and the dtype of the result.
    """
    if version not in (1, 2) or isinstance(version, bool):
        fix = "1 is GAT, 2 is GATv2."
        _check.fail(ValueError, op, "version", "1 or 2", repr(version), fix)
    h_s = features(op, "h_s", h_s, num_senders, "one for each sender")
    h_r = features(op, "h_r", h_r, graph.num_receivers, "one for each receiver")
    if h_s.shape[1:] != h_r.shape[1:]:
        fix = "Both ends have the same batch, heads and features."
        expected = f"an array of h_s's shape {h_s.shape} behind the first axis"
        _check.fail(ValueError, op, "h_r", expected, f"shape {h_r.shape}", fix)
    att = _check.array(op, "att", att)
    wanted = (2, *h_s.shape[-2:]) if version == 1 else h_s.shape[-2:]
    if att.shape != wanted or not jnp.issubdtype(att.dtype, jnp.floating):
        fix = "Version 1 takes [2, heads, D] (sender, receiver), version 2 [heads, D]."
        expected = f"a float array of shape {wanted}"
        _check.fail(ValueError, op, "att", expected, _check.describe(att), fix)
    static = static_of(op, scale, **how)
    dtype = jnp.result_type(h_s, h_r, att)
    arrays = edge_arrays(op, graph, h_s.shape[1:-1], wide(dtype), **edges)
    form = (number(op, "slope", slope), int(version))
    return *(computed(x, dtype) for x in (h_s, h_r, att)), arrays, static, form, dtype
