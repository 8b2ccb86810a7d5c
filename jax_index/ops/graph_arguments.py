# SPDX-License-Identifier: Apache-2.0
"""What the ops on graphs accept, and the dtypes that they compute in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_index import _check, _plan, _static
from jax_index._graph import Graph
from jax_index.ops import rows
from jax_index.ops.convert import convert


def check_graph(op: str, graph: Any) -> Graph:
    """Check that an argument is a graph, and its arrays those of one graph."""
    if not isinstance(graph, Graph):
        fix = "Make one with jax_index.Graph(senders, receivers, num_senders=, num_receivers=)."
        _check.fail(TypeError, op, "graph", "a Graph", _check.describe(graph), fix)
    if graph.is_static:
        return _static.settle(graph)
    _plan.check_leaves(op, graph.senders, "graph.senders")
    _plan.check_leaves(op, graph.receivers, "graph.receivers")
    shape = (graph.receivers.num_edges,)
    for name, leaf in (
        ("senders.ids", graph.senders.ids),
        ("sender_of", graph.sender_of),
        ("receiver_of", graph.receiver_of),
    ):
        _check.int32_leaf(op, f"graph.{name}", leaf, shape, "graph", "Graph")
    return _static.settle(graph)


def per_edge(
    op: str,
    argument: str,
    value: Any,
    graph: Graph,
    shape: tuple[int, ...],
    of: str,
    *,
    real: bool = False,
) -> jax.Array:
    """Check an array of edges whose further axes are the first ones of `shape`."""
    value = _check.array(op, argument, value)
    numeric(op, argument, value, real=real)
    if value.ndim == 0:
        fix = f"Give every edge one: jnp.full({graph.num_edges}, {argument})."
        _check.fail(ValueError, op, argument, f"[{graph.num_edges}, ...]", "a scalar", fix)
    _check.rows(op, argument, value, 0, graph.num_edges, "one for each edge", _check.GRAPH_FIX)
    if value.shape[1:] != shape[: value.ndim - 1]:
        fix = f"Its axes behind the first are the first ones of {of}, or fewer of them."
        expected = f"an array of shape [{graph.num_edges}, *prefix of {shape}]"
        _check.fail(ValueError, op, argument, expected, f"shape {value.shape}", fix)
    return value


def numeric(op: str, argument: str, value: jax.Array, *, real: bool = False) -> None:
    """Check that an array holds numbers that can be summed, or `real` ones alone."""
    rows.check_summable(op, argument, value.dtype)
    if real and value.dtype.kind == "c":
        fix = "Multiply real and imaginary parts separately."
        _check.fail(TypeError, op, argument, "real", f"dtype {value.dtype}", fix)


def compute_dtype(dtype: Any) -> Any:
    """Return the dtype that kernels of products take for arrays of `dtype`."""
    dtype = jnp.dtype(dtype)
    if jnp.issubdtype(dtype, jnp.floating):
        return dtype if jnp.finfo(dtype).bits >= 16 else jnp.dtype("float32")
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 32:
        return jnp.dtype("uint32" if jnp.issubdtype(dtype, jnp.unsignedinteger) else "int32")
    return dtype


def computed(value: jax.Array, dtype: Any) -> jax.Array:
    """Bring an operand to the dtype of the product, then to the one that it is computed in."""
    return _cast(convert(value, dtype), compute_dtype(dtype))


def stored(value: jax.Array, dtype: Any) -> jax.Array:
    """Bring a product to the dtype of the result."""
    return _cast(value, dtype)


def _cast(value: jax.Array, dtype: Any) -> jax.Array:
    # Between integers XLA's conversion is exact: it keeps the low bits.
    if jnp.issubdtype(dtype, jnp.integer):
        return value if value.dtype == dtype else value.astype(dtype)
    return convert(value, dtype)
