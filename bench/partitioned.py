# SPDX-License-Identifier: Apache-2.0
"""HetGAT with the network in parts: the model of `model.py` on every device of a mesh axis.

Road and od links share the owners of nodes. Weights are the same everywhere; JAX adds their
gradients over devices. Losses are sums over what parts own, so that padding counts nowhere.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jax_index
from bench.columns import COLUMNS, FUSED
from bench.model import (
    CONSERVATION_WEIGHT,
    FLOW_WEIGHT,
    Batch,
    Params,
    Topology,
    Variant,
    predict,
)
from bench.ops import Edges, Ops
from bench.scenarios import Problem
from bench.train import LEARNING_RATE

AXIS = "parts"


class Parts(NamedTuple):
    """A network in parts, every leaf stacked by part: an argument of the jitted step."""

    road: jax_index.Partition
    od: jax_index.Partition
    coordinates: jax.Array
    link_features: jax.Array
    capacity: jax.Array


def make_parts(problem: Problem, mesh: jax.sharding.Mesh) -> Parts:
    """Cut the road links, and the od links by the same owners; place all on the mesh."""
    n = problem.num_nodes
    sharding = NamedSharding(mesh, P(AXIS))
    graph = functools.partial(jax_index.Graph, num_senders=n, num_receivers=n)
    road = jax_index.partition(
        graph(problem.senders, problem.receivers), mesh.shape[AXIS], sharding=sharding
    )
    od = jax_index.partition(
        graph(problem.od_senders, problem.od_receivers),
        mesh.shape[AXIS],
        node_parts=road.node_parts,
        sharding=sharding,
    )
    return Parts(
        road,
        od,
        road.split(np.asarray(problem.coordinates)),
        road.split(np.asarray(problem.link_features), "edges"),
        road.split(np.asarray(problem.capacity), "edges"),
    )


def split_batch(parts: Parts, batch: Batch) -> Batch:
    """Scenarios, given as NumPy arrays, by parts."""
    split = parts.road.split
    return Batch(
        split(np.asarray(batch.features)),
        split(np.asarray(batch.flows), "edges"),
        split(np.asarray(batch.net_demand)),
    )


def part_ops() -> Ops:
    """The fused column's operations, where a GraphPart stands for the senders of its edges."""
    whole = COLUMNS[FUSED].make_ops()

    def gather(x: jax.Array, plan: Any) -> jax.Array:
        if isinstance(plan, jax_index.GraphPart):
            return plan.gather(x, lowering="native")
        return whole.gather(x, plan)

    def scatter_add(y: jax.Array, plan: Any) -> jax.Array:
        if isinstance(plan, jax_index.GraphPart):
            return plan.scatter_add(y)
        return whole.scatter_add(y, plan)

    def attention(
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
        return edges.graph.graph_attention(
            q,
            k,
            v,
            scale=scale,
            score_weights=score_weights,
            clip=None if limit is None else (-limit, limit),
            normalize="softmax" if limit is None else "sum",
            denominator_offset=offset,
        )

    return dataclasses.replace(
        whole, name="parts", gather=gather, scatter_add=scatter_add, fused=attention
    )


def part_loss(
    ops: Ops, variant: Variant, grad: str, params: Params, parts: Parts, batch: Batch
) -> tuple[jax.Array, jax.Array]:
    """The loss of the whole network, on every device, and the ratio [m, B] of a part's links.

    Called inside of shard_map: leaves of parts and batch have a first axis of one part.
    """
    road, od = (each.local(AXIS, grad=grad) for each in (parts.road, parts.od))
    rest = jax.tree.map(lambda leaf: leaf[0], (parts[2:], batch))
    (coordinates, link_features, capacity), batch = rest
    is_link, is_node = road.edge_ids >= 0, road.receiver_ids >= 0
    capacity = jnp.where(is_link, capacity, 1.0)  # of padding, so that nothing is divided by 0
    ends = (Edges(part, part.receivers, part) for part in (road, od))
    topology = Topology(*ends, coordinates, link_features, capacity)
    ratio = predict(ops, variant, params, topology, batch.features)
    flow = ratio * capacity[:, None]
    out_flow = ops.scatter_add(flow[:, :, None], topology.road.senders)[:, :, 0]
    in_flow = ops.scatter_add(flow[:, :, None], topology.road.receivers)[:, :, 0]

    def mean(values: jax.Array, there: jax.Array, count: int) -> jax.Array:
        total = jnp.sum(jnp.where(there[:, None], jnp.abs(values), 0.0))
        return jax.lax.psum(total, AXIS) / (count * values.shape[1])

    links, nodes = parts.road.num_edges, parts.road.num_receivers
    loss = (
        mean(ratio - batch.flows / capacity[:, None], is_link, links)
        + FLOW_WEIGHT * mean(flow - batch.flows, is_link, links)
        + CONSERVATION_WEIGHT * mean(out_flow - in_flow - batch.net_demand, is_node, nodes)
    )
    return loss, ratio[None]


def make_step(mesh: jax.sharding.Mesh, variant: Variant, grad: str = "exact") -> Callable[..., Any]:
    """(state, parts, batch) -> (state, loss, gradients, ratio by parts): a step of Adam, jitted."""
    loss = jax.shard_map(
        functools.partial(part_loss, part_ops(), variant, grad),
        mesh=mesh,
        in_specs=(P(), P(AXIS), P(AXIS)),
        out_specs=(P(), P(AXIS)),
    )

    def step(state: Any, parts: Parts, batch: Batch) -> Any:
        params, moments = state
        (value, ratio), grads = jax.value_and_grad(loss, has_aux=True)(params, parts, batch)
        updates, moments = optax.adam(LEARNING_RATE).update(grads, moments)
        return (optax.apply_updates(params, updates), moments), value, grads, ratio

    return jax.jit(step)
