# SPDX-License-Identifier: Apache-2.0
"""The columns: what each implementation supplies to the model, namely GAT attention alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

Graph = Any  # whatever the column indexes by; a pytree, passed to jitted functions as an argument


class AttentionOps(Protocol):
    """One implementation of attention over the edges of a graph with n nodes and m edges."""

    def make_graph(self, senders: np.ndarray, receivers: np.ndarray, num_nodes: int) -> Graph:
        """The graph on the device, made on the host once."""

    def gat_attention(
        self,
        graph: Graph,
        h_s: jax.Array,
        h_r: jax.Array,
        att: jax.Array,
        *,
        slope: float,
        weights: jax.Array | None,
    ) -> jax.Array:
        """[n, H, D]: for each node and head, Σ weights · softmax(score) · h_s[sender] over edges.

        h_s, h_r [n, H, D], att [2, H, D]; score = leaky_relu(att[0] · h_s[sender] + att[1] ·
        h_r[receiver]); weights [m, H] multiply after the softmax (dropout), None is 1.
        """


class XlaGraph(NamedTuple):
    """Both ends of every edge, int32 [m]."""

    senders: jax.Array
    receivers: jax.Array


class XlaOps:
    """jnp gathers and jax.ops.segment_*."""

    def make_graph(self, senders: np.ndarray, receivers: np.ndarray, num_nodes: int) -> XlaGraph:
        """The two index arrays; the number of nodes is that of the operands."""
        return XlaGraph(jnp.asarray(senders, jnp.int32), jnp.asarray(receivers, jnp.int32))

    def gat_attention(
        self,
        graph: XlaGraph,
        h_s: jax.Array,
        h_r: jax.Array,
        att: jax.Array,
        *,
        slope: float,
        weights: jax.Array | None,
    ) -> jax.Array:
        """The formula, edge by edge."""
        n = len(h_r)

        def at(x: jax.Array, ids: jax.Array) -> jax.Array:
            return x.at[ids].get(mode="promise_in_bounds")

        def per_receiver(reduce: Callable[..., jax.Array], x: jax.Array) -> jax.Array:
            return reduce(x, graph.receivers, n, mode="promise_in_bounds")

        of_sender, of_receiver = jnp.sum(h_s * att[0], axis=2), jnp.sum(h_r * att[1], axis=2)
        scores = at(of_sender, graph.senders) + at(of_receiver, graph.receivers)
        scores = jax.nn.leaky_relu(scores, slope)
        highest = jax.lax.stop_gradient(per_receiver(jax.ops.segment_max, scores))
        p = jnp.exp(scores - at(highest, graph.receivers))
        coefficients = p / at(per_receiver(jax.ops.segment_sum, p), graph.receivers)
        if weights is not None:
            coefficients = coefficients * weights
        messages = coefficients[:, :, None] * at(h_s, graph.senders)
        return per_receiver(jax.ops.segment_sum, messages)


class JaxIndexOps:
    """jax_index.gat_attention: one op forward, one backward, no edge-sized feature array."""

    def __init__(self):
        import jax_index  # here, so that the other column runs where it is not installed

        self._graph, self._attention = jax_index.Graph, jax_index.gat_attention

    def make_graph(self, senders: np.ndarray, receivers: np.ndarray, num_nodes: int) -> Graph:
        """A jax_index.Graph: both plans."""
        return self._graph(senders, receivers, num_senders=num_nodes, num_receivers=num_nodes)

    def gat_attention(
        self,
        graph: Graph,
        h_s: jax.Array,
        h_r: jax.Array,
        att: jax.Array,
        *,
        slope: float,
        weights: jax.Array | None,
    ) -> jax.Array:
        """The library's own op."""
        return self._attention(graph, h_s, h_r, att, slope=slope, version=1, weights=weights)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column's title and its operations."""

    title: str
    make_ops: Callable[[], AttentionOps]


SUBJECT = "jax_index"  # the column whose runs must be equal to the bit
COLUMNS = {"xla": Column("XLA native", XlaOps), SUBJECT: Column("jax_index", JaxIndexOps)}
