# SPDX-License-Identifier: Apache-2.0
"""Every op as a function of floats alone, beside the same function of one-hot matrices.

A case is (op of a module, dense function, shapes of the arguments, groups of arguments in which it
is linear). The dense function is plain JAX, differentiable in every mode by JAX's own rules.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

import jax_index

IDS, NUM_ROWS = np.array([0, 2, 1, 0, 2, -1, 2]), 3
DROPPED = (IDS < 0).reshape(-1, 1)
SENDERS, RECEIVERS = np.array([0, 2, 1, 0, 1, 2]), np.array([1, 0, 0, 1, 3, 0])
NUM_SENDERS, NUM_RECEIVERS = 3, 4
PLAN = jax_index.make_plan(IDS, NUM_ROWS, mode="drop")
GRAPH = jax_index.Graph(SENDERS, RECEIVERS, num_senders=NUM_SENDERS, num_receivers=NUM_RECEIVERS)


def one_hot(ids, count):
    """The selection matrix: row e has its 1 at ids[e], or none."""
    return jnp.asarray(np.asarray(ids)[:, None] == np.arange(count), jnp.float64)


def taken(ids, count, x):
    """Rows of x at the edges."""
    return jnp.tensordot(one_hot(ids, count), x, 1)


def summed(ids, count, y):
    """Edges summed into rows."""
    return jnp.tensordot(one_hot(ids, count).T, y, 1)


def gather(x):
    return taken(IDS, NUM_ROWS, x)


def scatter(y):
    return summed(IDS, NUM_ROWS, y)


def there(x):
    """x without its dropped edges."""
    return jnp.where(DROPPED, 0.0, x)


def mean(x):
    return scatter(x) / scatter(jnp.ones((len(IDS), 1)))


def var(x):
    return mean((there(x) - gather(mean(x))) ** 2)


def std(x):
    some = var(x) > 0
    return jnp.where(some, jnp.sqrt(jnp.where(some, var(x), 1.0)), 0.0)


def softmax(x):
    return jnp.exp(x) / jnp.where(DROPPED, jnp.inf, gather(scatter(jnp.exp(x))))


def extremum(x, best):
    return jnp.stack([best(x[np.flatnonzero(i == IDS)], axis=0) for i in range(NUM_ROWS)])


def sender(x):
    return taken(SENDERS, NUM_SENDERS, x)


def receiver(x):
    return taken(RECEIVERS, NUM_RECEIVERS, x)


def received(y):
    return summed(RECEIVERS, NUM_RECEIVERS, y)


def attention(s, v, offset=0.0, weights=1.0):
    """Weigh the senders' v with exp(s) over its sum at the receiver."""
    share = jnp.exp(s) / (receiver(received(jnp.exp(s))) + offset)
    return received((weights * share)[..., None] * sender(v))


def leaky(x, slope=0.2):
    return jnp.where(x >= 0, x, slope * x)


def dot_scores(q, k):
    return jnp.sum(receiver(q) * sender(k), axis=-1) / np.sqrt(q.shape[-1])


def gat_scores(h_s, h_r, att):
    return leaky(jnp.sum(sender(h_s) * att[:1] + receiver(h_r) * att[1:], axis=-1))


def gat2_scores(h_s, h_r, att):
    return jnp.sum(att[None] * leaky(sender(h_s) + receiver(h_r)), axis=-1)


def with_every_array(M):
    """Attention with all that it takes."""
    return lambda q, k, v, multiplier, bias, weights: M.graph_attention(
        GRAPH,
        q,
        k,
        v,
        score_weights=multiplier,
        bias=bias,
        weights=weights,
        clip=(-9.0, 9.0),
        denominator_offset=0.5,
    )


def with_every_array_dense(q, k, v, multiplier, bias, weights):
    s = dot_scores(q, k) * multiplier[:, None] + bias
    return attention(s, v, 0.5, weights)


M, N_S, N_R = len(SENDERS), NUM_SENDERS, NUM_RECEIVERS
EDGES, ROWS = (len(IDS), 2), (NUM_ROWS, 2)
NODES = ((N_R, 1, 2), (N_S, 1, 2))


def segments(name):
    return lambda M: lambda x: getattr(M, name)(x, PLAN)


CASES = {
    "gather": (
        lambda M: lambda x: M.gather(x, PLAN, fill_value=3.0),
        lambda x: jnp.where(DROPPED, 3.0, gather(x)),
        [ROWS],
        [[0]],
    ),
    "scatter_add": (lambda M: lambda y: M.scatter_add(y, PLAN), scatter, [EDGES], [[0]]),
    "index_add": (
        lambda M: lambda x, y: M.index_add(x, PLAN, y),
        lambda x, y: x + scatter(y),
        [ROWS, EDGES],
        [[0, 1], [0], [1]],
    ),
    "segment_sum": (segments("segment_sum"), scatter, [EDGES], [[0]]),
    "segment_mean": (segments("segment_mean"), mean, [EDGES], [[0]]),
    "segment_max": (segments("segment_max"), lambda x: extremum(x, jnp.max), [EDGES], []),
    "segment_min": (segments("segment_min"), lambda x: extremum(x, jnp.min), [EDGES], []),
    "segment_prod": (segments("segment_prod"), lambda x: extremum(x, jnp.prod), [EDGES], []),
    "segment_var": (segments("segment_var"), var, [EDGES], []),
    "segment_std": (segments("segment_std"), std, [EDGES], []),
    "segment_softmax": (segments("segment_softmax"), softmax, [EDGES], []),
    "segment_logsumexp": (
        segments("segment_logsumexp"),
        lambda x: jnp.log(scatter(jnp.exp(x))),
        [EDGES],
        [],
    ),
    "spmm": (
        lambda M: lambda x, w: M.spmm(GRAPH, x, w),
        lambda x, w: received(sender(x) * w[..., None]),
        [(N_S, 2, 2), (M, 2)],
        [[0], [1]],
    ),
    "spmm, no weights": (
        lambda M: lambda x: M.spmm(GRAPH, x),
        lambda x: received(sender(x)),
        [(N_S, 2)],
        [[0]],
    ),
    "sddmm": (
        lambda M: lambda x, y: M.sddmm(GRAPH, x, y),
        lambda x, y: jnp.sum(sender(x) * receiver(y), axis=-1),
        [(N_S, 2), (N_R, 2)],
        [[0], [1]],
    ),
    "edge_softmax": (
        lambda M: lambda s: M.edge_softmax(GRAPH, s),
        lambda s: jnp.exp(s) / receiver(received(jnp.exp(s))),
        [(M, 2)],
        [],
    ),
    "graph_attention": (
        lambda M: lambda q, k, v: M.graph_attention(GRAPH, q, k, v),
        lambda q, k, v: attention(dot_scores(q, k), v),
        [*NODES, (N_S, 1, 3)],
        [],
    ),
    "graph_attention, every array": (
        with_every_array,
        with_every_array_dense,
        [*NODES, (N_S, 1, 1), (M,), (M, 1), (M, 1)],
        [],
    ),
    "gat_attention": (
        lambda M: lambda h_r, h_s, att: M.gat_attention(GRAPH, h_s, h_r, att),
        lambda h_r, h_s, att: attention(gat_scores(h_s, h_r, att), h_s),
        [*NODES, (2, 1, 2)],
        [],
    ),
    "gat_attention, version 2": (
        lambda M: lambda h_r, h_s, att: M.gat_attention(GRAPH, h_s, h_r, att, version=2),
        lambda h_r, h_s, att: attention(gat2_scores(h_s, h_r, att), h_s),
        [*NODES, (1, 2)],
        [],
    ),
}
