# SPDX-License-Identifier: Apache-2.0
"""What a column supplies to the model: an index plan, gather, scatter-add, and attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Plan = Any  # whatever the column indexes by; a pytree, passed to jitted functions as an argument


class Edges(NamedTuple):
    """One edge type: the plans of its senders and receivers (m edges into n nodes each).

    `graph` is for columns that fuse both into one object.
    """

    senders: Plan
    receivers: Plan
    graph: Any = None


@dataclasses.dataclass(frozen=True)
class Ops:
    """One implementation of the indexed operations.

    make_plan(ids int32 [m], num_rows) -> Plan, on the host.
    gather(x [n, B, d], plan) -> [m, B, d]; scatter_add(y [m, B, d], plan) -> [n, B, d].
    segment_max: as scatter_add, the largest entry of each row; never differentiated.
    Where a column fuses attention: make_graph(senders, receivers, num_nodes), an object with plans
    of these names, and `fused`, which takes the arguments of `attention` in its place.
    """

    name: str
    make_plan: Callable[[np.ndarray, int], Plan]
    gather: Callable[[jax.Array, Plan], jax.Array]
    scatter_add: Callable[[jax.Array, Plan], jax.Array]
    segment_max: Callable[[jax.Array, Plan], jax.Array]
    make_graph: Callable[[np.ndarray, np.ndarray, int], Any] | None = None
    fused: Callable[..., jax.Array] | None = None

    def edges(self, senders: np.ndarray, receivers: np.ndarray, num_nodes: int) -> Edges:
        """Plans of both ends of the edges."""
        if self.make_graph is not None:
            graph = self.make_graph(senders, receivers, num_nodes)
            return Edges(graph.senders, graph.receivers, graph)
        return Edges(self.make_plan(senders, num_nodes), self.make_plan(receivers, num_nodes))

    def attention(
        self,
        edges: Edges,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        score_weights: jax.Array,
        scale: float,
        limit: float | None,
        offset: float,
    ) -> jax.Array:
        """Σ s v_sender / (Σ s + offset), s = exp(clip(weight · ⟨q_receiver, k_sender⟩ · scale)).

        q, k, v, result: [n, B, heads, width]; score_weights [m, B or 1, 1 or heads]. A node that
        no edge enters gets 0. Without a limit nothing is clipped, and the largest score of a node
        is subtracted before exp; the offset is then 0.
        """
        if self.fused is not None:
            return self.fused(
                edges, q, k, v, score_weights=score_weights, scale=scale, limit=limit, offset=offset
            )
        n, batch, heads, width = q.shape

        def at(x: jax.Array, plan: Plan) -> jax.Array:
            rows = self.gather(x.reshape(n, batch, heads * width), plan)
            return rows.reshape(-1, batch, heads, width)

        score = jnp.sum(at(q, edges.receivers) * at(k, edges.senders), axis=3)
        score = score_weights * score * scale
        if limit is None:
            largest = self.segment_max(jax.lax.stop_gradient(score), edges.receivers)
            s = jnp.exp(score - self.gather(largest, edges.receivers))
        else:
            s = jnp.exp(jnp.clip(score, -limit, limit))
        weighted = (s[:, :, :, None] * at(v, edges.senders)).reshape(-1, batch, heads * width)
        total = self.scatter_add(weighted, edges.receivers).reshape(q.shape)
        norm = self.scatter_add(s, edges.receivers) + offset
        return total / jnp.where(norm > 0, norm, 1.0)[:, :, :, None]
