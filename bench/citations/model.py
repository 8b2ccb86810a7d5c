# SPDX-License-Identifier: Apache-2.0
"""The transductive two-layer GAT of Velickovic et al., ICLR 2018, one code for every column."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench.citations.attention import AttentionOps, Graph
from bench.citations.dataset import CitationGraph

HEADS, HEAD_WIDTH = 8, 8  # first layer; the second has one head as wide as there are classes
DROPOUT = 0.6  # of inputs, attention coefficients and values of both layers
SLOPE = 0.2
L2 = 5e-4


@dataclasses.dataclass(frozen=True)
class Problem:
    """A citation graph on the device: the column's graph, sparse features, labels, split."""

    graph: Graph
    rows: jax.Array
    columns: jax.Array
    values: jax.Array
    labels: jax.Array
    train: jax.Array
    val: jax.Array
    test: jax.Array
    num_edges: int
    num_features: int
    num_classes: int


ARRAYS = ("rows", "columns", "values", "labels", "train", "val", "test")
SIZES = ("num_features", "num_classes")
jax.tree_util.register_dataclass(
    Problem, data_fields=["graph", *ARRAYS], meta_fields=["num_edges", *SIZES]
)


class Layer(NamedTuple):
    """weight [inputs, H, D], attention [2, H, D] (sender, receiver), bias [H, D]."""

    weight: jax.Array
    attention: jax.Array
    bias: jax.Array


Params = tuple[Layer, Layer]


class LayerDropout(NamedTuple):
    """Factors, 0 or 1 / the share that is kept, of a layer in training.

    inputs: of its input, the first layer's as the stored features [nnz]; coefficients [m, H];
    values [n, H, D]: of the features that are summed, not of those that make the scores.
    """

    inputs: jax.Array
    coefficients: jax.Array
    values: jax.Array


Dropout = tuple[LayerDropout, LayerDropout]


def make_problem(ops: AttentionOps, source: CitationGraph) -> Problem:
    """Upload what training reads, with the edges in the column's own form."""
    return Problem(
        graph=ops.make_graph(source.senders, source.receivers, source.num_nodes),
        num_edges=len(source.senders),
        **{name: jnp.asarray(getattr(source, name)) for name in ARRAYS},
        **{name: getattr(source, name) for name in SIZES},
    )


def init_params(seed: int, num_features: int, num_classes: int) -> Params:
    """Glorot uniform, each head by itself as in the authors' code; biases 0.

    From NumPy, so that every column and platform starts from the same bits.
    """
    rng = np.random.default_rng(seed)

    def glorot(shape: tuple[int, ...], fan: int) -> np.ndarray:
        limit = (6 / fan) ** 0.5
        return rng.uniform(-limit, limit, shape).astype(np.float32)

    def layer(inputs: int, heads: int, width: int) -> Layer:
        return Layer(
            weight=glorot((inputs, heads, width), inputs + width),
            attention=glorot((2, heads, width), width + 1),
            bias=np.zeros((heads, width), np.float32),
        )

    return layer(num_features, HEADS, HEAD_WIDTH), layer(HEADS * HEAD_WIDTH, 1, num_classes)


def draw_dropout(key: jax.Array, problem: Problem) -> Dropout:
    """The factors of one epoch, cut from one draw; threefry gives every column the same.

    Dropout of a zero is a zero, so of the features only the stored ones draw a number: on Cora
    1.3 % of them all.
    """
    n, m = len(problem.labels), problem.num_edges
    shapes = (
        LayerDropout(problem.values.shape, (m, HEADS), (n, HEADS, HEAD_WIDTH)),
        LayerDropout((n, HEADS * HEAD_WIDTH), (m, 1), (n, 1, problem.num_classes)),
    )
    sizes = [math.prod(shape) for layer in shapes for shape in layer]
    keep = 1 - DROPOUT
    kept = jax.random.bernoulli(key, keep, (sum(sizes),))
    parts = iter(jnp.split(jnp.where(kept, jnp.float32(1 / keep), 0), np.cumsum(sizes)[:-1]))
    first, second = (LayerDropout(*(next(parts).reshape(s) for s in layer)) for layer in shapes)
    return first, second


def logits(
    ops: AttentionOps, problem: Problem, params: Params, dropout: Dropout | None
) -> jax.Array:
    """[n, classes]; without dropout as in evaluation."""
    first, second = dropout or (None, None)
    features = problem.values if first is None else problem.values * first.inputs
    x = jnp.zeros((len(problem.labels), problem.num_features), features.dtype)
    x = x.at[problem.rows, problem.columns].set(
        features, mode="promise_in_bounds", unique_indices=True
    )
    hidden = jax.nn.elu(_layer(ops, problem, x, params[0], first))
    hidden = hidden.reshape(len(hidden), -1)
    if second is not None:
        hidden = hidden * second.inputs
    return _layer(ops, problem, hidden, params[1], second)[:, 0]


def _layer(
    ops: AttentionOps,
    problem: Problem,
    x: jax.Array,
    layer: Layer,
    dropout: LayerDropout | None,
) -> jax.Array:
    """[n, H, D] before the activation; dropout of the inputs is done already.

    The authors drop features from the values and not from the scores, while the op reads both from
    h_s. So in training the sender's part of the score travels as one more feature of h_s.
    """
    inputs, heads, width = layer.weight.shape
    h = (x @ layer.weight.reshape(inputs, heads * width)).reshape(-1, heads, width)
    graph, att = problem.graph, layer.attention
    if dropout is None:
        out = ops.gat_attention(graph, h, h, att, slope=SLOPE, weights=None)
    else:
        score = jnp.sum(h * att[0], axis=2, keepdims=True)
        h_s = jnp.concatenate([h * dropout.values, score], axis=2)
        h_r = jnp.pad(h, ((0, 0), (0, 0), (0, 1)))
        only_score = jnp.zeros((heads, width + 1)).at[:, width].set(1)
        wider = jnp.stack([only_score, jnp.pad(att[1], ((0, 0), (0, 1)))])
        out = ops.gat_attention(graph, h_s, h_r, wider, slope=SLOPE, weights=dropout.coefficients)[
            :, :, :width
        ]
    return out + layer.bias


def training_loss(
    ops: AttentionOps, params: Params, problem: Problem, dropout: Dropout
) -> jax.Array:
    """Mean cross entropy of the training nodes, plus half the squared norm of weights x L2."""
    out = logits(ops, problem, params, dropout)
    weights = [w for layer in params for w in (layer.weight, layer.attention)]
    norm = sum(jnp.sum(w * w) for w in weights)
    return cross_entropy(problem, out, problem.train) + L2 / 2 * norm


def cross_entropy(problem: Problem, out: jax.Array, nodes: jax.Array) -> jax.Array:
    """Mean over some nodes."""
    labels = problem.labels[nodes][:, None]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(out[nodes]), labels, axis=1))


def count_correct(problem: Problem, out: jax.Array, nodes: jax.Array) -> jax.Array:
    """How many of some nodes get their label; an integer, so that equal accuracies are equal."""
    return jnp.sum(jnp.argmax(out[nodes], axis=1) == problem.labels[nodes], dtype=jnp.int32)
