# SPDX-License-Identifier: Apache-2.0
"""HetGAT-TA, a surrogate for static traffic assignment, written once for every column.

Node arrays are [n, batch, features] and edge arrays [m, batch, features], so that one topology
serves a batch of scenarios. All indexed access goes through an `Ops`; what a linear layer makes
of a gathered row it makes of the node's row first (fewer rows than edges), in every column.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench.ops import Edges, Ops

HEADS, HEAD_WIDTH = 4, 32
WIDTH = HEADS * HEAD_WIDTH
PRE_WIDTH = 64
INPUT_WIDTH = PRE_WIDTH + 2  # the coordinates join
SCORE_LIMIT = 5.0
LEAK = 0.01
FLOW_WEIGHT, CONSERVATION_WEIGHT = 0.005, 0.05  # beside the ratio's 1 in the loss

Params = dict[str, Any]


class Variant(NamedTuple):
    """What a run changes of the model, in every column alike.

    softmax: "clip" (exp of clipped scores over their plain sum) or "segment" (a true softmax over
    the edges that enter a node). dtype: of activations and of the weights that they meet; trained
    weights, statistics of norms, ratios and losses are float32.
    """

    softmax: str = "clip"
    dtype: str = "float32"


class Topology(NamedTuple):
    """What all scenarios share: arguments of the jitted functions, never closed over.

    road, od: Edges. coordinates [n, 2], link_features [m, 2], capacity [m].
    """

    road: Edges
    od: Edges
    coordinates: jax.Array
    link_features: jax.Array
    capacity: jax.Array


class Batch(NamedTuple):
    """Scenarios: features [n, B, F], flows [m, B], net_demand [n, B]."""

    features: jax.Array
    flows: jax.Array
    net_demand: jax.Array


def init_params(seed: int, num_features: int) -> Params:
    """Weights uniform in ±1/√fan-in, drawn by NumPy so that all columns and versions agree."""
    rng = np.random.default_rng([seed, num_features])

    def linear(fan_in: int, fan_out: int) -> Params:
        bound = 1.0 / math.sqrt(fan_in)
        return {
            "w": rng.uniform(-bound, bound, (fan_in, fan_out)).astype(np.float32),
            "b": rng.uniform(-bound, bound, fan_out).astype(np.float32),
        }

    def mlp(*widths: int) -> list[Params]:
        return [linear(a, b) for a, b in itertools.pairwise(widths)]

    def attention(width: int) -> Params:
        return {
            **{name: linear(width, WIDTH) for name in ("q", "k", "v", "skip")},
            "out": linear(WIDTH, WIDTH),
            "norm": {"scale": np.ones(WIDTH, np.float32), "shift": np.zeros(WIDTH, np.float32)},
        }

    beta = mlp(2 * INPUT_WIDTH, PRE_WIDTH, PRE_WIDTH, 1)
    return {
        "pre": mlp(num_features, PRE_WIDTH, PRE_WIDTH),
        "od": {**attention(INPUT_WIDTH), "beta": beta},
        "road": [attention(WIDTH), attention(WIDTH)],
        "head": mlp(2 * WIDTH + 6, WIDTH, WIDTH, WIDTH, WIDTH, 1),
    }


def count_params(params: Params) -> int:
    """Number of trained numbers."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def predict(
    ops: Ops, variant: Variant, params: Params, topology: Topology, features: jax.Array
) -> jax.Array:
    """Flow / capacity ratio [m, B] of every link for features [n, B, F]."""
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(variant.dtype), tree)  # noqa: E731
    params, features = cast(params), cast(features)
    coordinates, links = cast((topology.coordinates[:, None], topology.link_features[:, None]))
    place = jnp.broadcast_to(coordinates, (*features.shape[:2], 2))
    x = jnp.concatenate([_mlp(params["pre"], features), place], axis=2)
    beta = _pair_mlp(ops, params["od"]["beta"], topology.od, [x])
    x = _encode(ops, variant, params["od"], topology.od, x, beta, offset=1.0)
    for layer in params["road"]:
        x = _encode(ops, variant, layer, topology.road, x, links[:, :, :1], offset=0.0)
    ratio = _pair_mlp(ops, params["head"], topology.road, [x, coordinates], links)
    return ratio[:, :, 0].astype(jnp.float32)


def loss_terms(
    ops: Ops, variant: Variant, params: Params, topology: Topology, batch: Batch
) -> tuple[jax.Array, jax.Array]:
    """The weighted loss, a scalar, and the predicted ratio [m, B]."""
    ratio = predict(ops, variant, params, topology, batch.features)
    capacity = topology.capacity[:, None]
    flow = ratio * capacity
    out_flow = ops.scatter_add(flow[:, :, None], topology.road.senders)[:, :, 0]
    in_flow = ops.scatter_add(flow[:, :, None], topology.road.receivers)[:, :, 0]
    loss = (
        jnp.mean(jnp.abs(ratio - batch.flows / capacity))
        + FLOW_WEIGHT * jnp.mean(jnp.abs(flow - batch.flows))
        + CONSERVATION_WEIGHT * jnp.mean(jnp.abs(out_flow - in_flow - batch.net_demand))
    )
    return loss, ratio


def _linear(layer: Params, x: jax.Array) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def _mlp(layers: list[Params], x: jax.Array) -> jax.Array:
    """Layers with a ReLU after each but, where the last has one output, the last."""
    for layer in layers:
        x = _linear(layer, x)
        x = x if layer["w"].shape[1] == 1 else jax.nn.relu(x)
    return x


def _pair_mlp(
    ops: Ops, layers: list[Params], edges: Edges, parts: list[jax.Array], extra: Any = None
) -> jax.Array:
    """MLP of [sender's parts, receiver's parts, extra] for node rows [n, B or 1, d]: [m, B, out].

    The first layer is split by input: node rows are projected before they are gathered.
    """
    first, *rest = layers
    ends = _places([*parts, *parts])
    # No empty piece at the end: jax 0.8 cannot differentiate a split of which a piece is not used.
    weights = iter(jnp.split(first["w"], ends if extra is not None else ends[:-1]))
    sender, receiver = (sum(x @ next(weights) for x in parts) for _ in range(2))
    hidden = ops.gather(sender, edges.senders)
    hidden = hidden + ops.gather(receiver + first["b"], edges.receivers)
    if extra is not None:
        hidden = hidden + extra @ next(weights)
    return _mlp(rest, jax.nn.relu(hidden))


def _places(parts: list[jax.Array]) -> list[int]:
    """Where the features of each part end when all stand side by side."""
    return list(itertools.accumulate(x.shape[2] for x in parts))


def _encode(
    ops: Ops,
    variant: Variant,
    layer: Params,
    edges: Edges,
    x: jax.Array,
    beta: jax.Array,
    offset: float,
) -> jax.Array:
    """One attention layer: x [n, B, width], beta [m, B or 1, 1] multiplies every head's score."""
    heads = (*x.shape[:2], HEADS, HEAD_WIDTH)
    clipped = variant.softmax == "clip"
    out = ops.attention(
        edges,
        *(_linear(layer[name], x).reshape(heads) for name in ("q", "k", "v")),
        score_weights=beta,
        scale=1.0 / math.sqrt(x.shape[2]),
        limit=SCORE_LIMIT if clipped else None,
        offset=offset if clipped else 0.0,
    )
    out = _linear(layer["out"], out.reshape(*x.shape[:2], WIDTH)) + _linear(layer["skip"], x)
    return jax.nn.leaky_relu(out + _layer_norm(layer["norm"], out), LEAK)


def _layer_norm(layer: Params, x: jax.Array) -> jax.Array:
    """In float32 whatever x is."""
    wide = x.astype(jnp.float32)
    centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    normal = centred * jax.lax.rsqrt(variance + 1e-5) * layer["scale"] + layer["shift"]
    return normal.astype(x.dtype)
