# SPDX-License-Identifier: Apache-2.0
"""Where attention keeps its scores: in the caller's order of edges or in that of the receivers.

The bits are the same, for a row's edges have the same order in both. Of a large graph whose edges
have few scores each, numbers in the caller's order cost a sector of memory for each of them,
wherever they are written or read; in the receivers' row order they stand side by side.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jax_index import _ad
from jax_index._graph import Graph
from jax_index._static import StaticGraph

# From so many edges on, with at most so many scores each, moving pays for the three arrays of
# indices that it needs.
MIN_EDGES = 1 << 20
MAX_SCORES = 4


@_ad.custom_vjp(linear=((0,),))
def _moved(x: jax.Array, there: jax.Array, back: jax.Array) -> jax.Array:
    del back
    return jnp.take(x, there, axis=0, mode="clip")


def _moved_fwd(x: jax.Array, there: jax.Array, back: jax.Array) -> Any:
    return _moved(x, there, back), (there, back)


def _moved_bwd(saved: Any, ct: jax.Array) -> Any:
    there, back = saved
    return _moved(ct, back, there), None, None


_moved.defvjp(_moved_fwd, _moved_bwd)


def in_row_order(graph: Graph, edges: Any, scores: tuple[int, ...]) -> tuple[Graph, Any]:
    """Return the graph and per-edge arrays with which attention is computed.

    Args:
        graph: the caller's.
        edges: arrays ``[m, ...]`` in the caller's order, or None.
        scores: the shape of an edge's scores.
    """
    large = graph.num_edges >= MIN_EDGES and math.prod(scores) <= MAX_SCORES
    if graph.receivers.identity or not large:
        return graph, edges
    whole = graph.graph if isinstance(graph, StaticGraph) else graph
    receivers, senders = whole.receivers, whole.senders
    there = receivers.perm
    count = jax.lax.iota(jnp.int32, graph.num_edges)
    back = jnp.zeros_like(there).at[there].set(count, unique_indices=True, mode="drop")
    ids = jnp.take(receivers.ids, there, mode="clip")
    places = jnp.take(back, senders.perm, mode="clip")
    ordered = Graph._of(
        dataclasses.replace(senders, ids=whole.sender_of, perm=places, identity=False),
        dataclasses.replace(receivers, ids=ids, perm=count, identity=True),
        whole.sender_of,
        whole.receiver_of,
    )
    return ordered, tuple(x if x is None else _moved(x, there, back) for x in edges)
