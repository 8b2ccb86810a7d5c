# SPDX-License-Identifier: Apache-2.0
"""Every refusal of Graph and of the padding of plans, with its whole text."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse

from jax_index import Graph, gather, make_plan

from .error_table import DROP, LIST, SIZE, STATIC, WRAP, f32, i32, traced


def plan():
    return make_plan([0, 1, 1], 2)


def graph():
    return Graph(plan(), [2, 0, 1], num_receivers=3)


def join(senders=(0, 1), receivers=(1, 0), num_senders=2, num_receivers=2, **settings):
    return Graph(
        senders, receivers, num_senders=num_senders, num_receivers=num_receivers, **settings
    )


def stack(value):
    return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), value)


def bcoo(shape, n_batch=0, n_dense=0):
    return sparse.BCOO.fromdense(f32(*shape), n_batch=n_batch, n_dense=n_dense)


def bcsr(indptr, indices=(0, 1), shape=(2, 2)):
    arrays = f32(len(indices)), jnp.array(indices), jnp.array(indptr)
    return sparse.BCSR(arrays, shape=shape)


def changed(M, **fields):
    """Put other arrays into a matrix, past the checks of its constructor."""
    for name, value in fields.items():
        setattr(M, name, value)
    return M


def jraph(**fields):
    return types.SimpleNamespace(**{"senders": [0], "receivers": [0], "n_node": [1], **fields})


MADE = "The plans were made with a mode already."
PAIRS = "Pass one sender and one receiver for each edge."
STACKED = "A stacked plan goes through jax.vmap or jax.lax.scan."
PADDING = "Padding takes nothing away: pass the present size or a larger one."
BOUNDS = "Pass the n + 1 row bounds of a CSR matrix."
BATCH = "Go over a batch with jax.vmap; sparsify dense dimensions first."
NO_NODES = "Pass n_node or nodes, or use Graph with num_senders= and num_receivers=."
TUPLE = "Pass a jraph.GraphsTuple, or use Graph(senders, receivers, ...)."

# (op, call, kind of error, text)
TABLE = [
    (
        "Graph",
        lambda: join([0, 2]),
        IndexError,
        f"every sender must be in [0, 2) (num_senders is 2), got senders[1] = 2. {DROP}",
    ),
    (
        "Graph",
        lambda: join([0, -1]),
        IndexError,
        f"every sender must be in [0, 2) (num_senders is 2), got senders[1] = -1. {DROP}",
    ),
    (
        "Graph",
        lambda: join(receivers=np.array([1, 2**32]), mode="raise"),
        IndexError,
        "every receiver must be in [0, 2) (num_receivers is 2), got receivers[1] = 4294967296. "
        + DROP,
    ),
    (
        "Graph",
        lambda: join(receivers=[2**64, 0]),
        IndexError,
        "every receiver must be in [0, 2) (num_receivers is 2), "
        f"got receivers[0] = 18446744073709551616. {DROP}",
    ),
    (
        "Graph",
        lambda: Graph(plan(), [0, 3, 5], num_receivers=2),
        IndexError,
        f"every receiver must be in [0, 2) (num_receivers is 2), got receivers[1] = 3. {DROP}",
    ),
    (
        "Graph",
        lambda: join([0.0, 1.0]),
        TypeError,
        f"senders must be an integer array, got dtype float64. {LIST}",
    ),
    (
        "Graph",
        lambda: join(receivers=[[0], [1]]),
        ValueError,
        f"receivers must be one-dimensional, got shape (2, 1). {LIST}",
    ),
    (
        "Graph",
        lambda: traced(lambda s: join(s).sender_of, f32(2)),
        TypeError,
        "senders must be an integer array, got dtype float32. "
        "Pass a one-dimensional array of integers.",
    ),
    (
        "Graph",
        lambda: traced(lambda r: join(receivers=r).sender_of, i32(2, 1)),
        ValueError,
        "receivers must be one-dimensional, got shape (2, 1). "
        "Pass a one-dimensional array of integers; use vmap for a batch.",
    ),
    (
        "Graph",
        lambda: traced(lambda r: join(receivers=r, mode="raise").sender_of, i32(2)),
        ValueError,
        "mode must be 'drop' for traced receivers, got 'raise'. "
        "Values of a traced array cannot raise: pass mode='drop'.",
    ),
    (
        "Graph",
        lambda: traced(lambda s: join([s[0], 0]).sender_of, i32(2)),
        TypeError,
        "senders must be an integer array, got an object of type list. "
        "Make one array of them first, with jax.numpy.stack.",
    ),
    (
        "Graph",
        lambda: join(graph()),
        TypeError,
        f"senders must be an integer array, got an object of type Graph. {LIST}",
    ),
    (
        "Graph",
        lambda: join(None),
        TypeError,
        f"senders must be an integer array, got None. {LIST}",
    ),
    (
        "Graph",
        lambda: join([0, 1, 1]),
        ValueError,
        f"receivers must be as many as the senders (3), got 2. {PAIRS}",
    ),
    (
        "Graph",
        lambda: Graph(plan(), make_plan([0], 1)),
        ValueError,
        f"receivers must be as many as the senders (3), got 1. {PAIRS}",
    ),
    (
        "Graph",
        lambda: traced(lambda s: join(s).sender_of, i32(4)),
        ValueError,
        f"receivers must be as many as the senders (4), got 2. {PAIRS}",
    ),
    (
        "Graph",
        lambda: join(num_senders=None),
        ValueError,
        "num_senders must be given with raw senders, got None. Pass num_senders=, or a plan.",
    ),
    (
        "Graph",
        lambda: Graph(plan(), [0, 1, 1]),
        ValueError,
        "num_receivers must be given with raw receivers, got None. Pass num_receivers=, or a plan.",
    ),
    (
        "Graph",
        lambda: join(num_senders=2.0),
        TypeError,
        f"num_senders must be {SIZE}, got 2.0. Pass num_senders as a Python int.",
    ),
    (
        "Graph",
        lambda: join(num_receivers=2**31),
        ValueError,
        f"num_receivers must be {SIZE}, got 2147483648. "
        "Pass num_receivers in that range; sizes are 32-bit.",
    ),
    (
        "Graph",
        lambda: traced(lambda n: join(num_receivers=n).sender_of, 2),
        TypeError,
        f"num_receivers must be {SIZE}, got a traced array of shape () and dtype int32. {STATIC}",
    ),
    (
        "Graph",
        lambda: Graph(plan(), plan(), num_senders=3),
        ValueError,
        "num_senders must be None or the plan's 2, got 3. "
        "Leave num_senders out, or use the plan made for it.",
    ),
    (
        "Graph",
        lambda: Graph([0, 0, 0], plan(), num_senders=1, num_receivers=1),
        ValueError,
        "num_receivers must be None or the plan's 2, got 1. "
        "Leave num_receivers out, or use the plan made for it.",
    ),
    (
        "Graph",
        lambda: Graph(plan(), plan(), mode="drop"),
        ValueError,
        f"mode must be None with two plans, got 'drop'. {MADE}",
    ),
    (
        "Graph",
        lambda: join(mode="clip"),
        ValueError,
        f"mode must be None, 'raise' or 'drop', got 'clip'. {WRAP}",
    ),
    (
        "Graph",
        lambda: join(mode=1),
        ValueError,
        f"mode must be None, 'raise' or 'drop', got 1. {WRAP}",
    ),
    (
        "Graph",
        lambda: Graph(plan(), stack(plan())),
        TypeError,
        "receivers.ids must be an int32 array of shape (3,), "
        f"got an array of shape (2, 3) and dtype int32. {STACKED}",
    ),
    (
        "Graph",
        lambda: Graph(jax.tree.map(lambda leaf: leaf / 2, plan()), plan()),
        TypeError,
        "senders.ids must be an int32 array of shape (3,), got an array of shape (3,) and dtype "
        "float32. Pass the plan as make_plan returned it.",
    ),
    (
        "Graph",
        lambda: Graph(jax.eval_shape(plan), plan()),
        TypeError,
        "senders must be concrete, got a plan whose ids are an object of type ShapeDtypeStruct. "
        "Build the graph outside of jit, or pass it as an argument.",
    ),
    (
        "Graph",
        lambda: traced(lambda g: hash(g) and 0, graph()),
        TypeError,
        "senders must be concrete, got a plan whose ids are a traced array of shape (3,) and "
        "dtype int32. Hash or compare the graph outside of jit, or pass it as an argument.",
    ),
    (
        "Graph",
        lambda: traced(lambda g: g == graph() and 0, graph()),
        TypeError,
        "senders must be concrete, got a plan whose ids are a traced array of shape (3,) and "
        "dtype int32. Hash or compare the graph outside of jit, or pass it as an argument.",
    ),
    (
        "Graph",
        lambda: stack(graph()) == graph(),
        TypeError,
        "senders.ids must be an int32 array of shape (3,), got an array of shape (2, 3) and dtype "
        "int32. Hash or compare single graphs, as Graph makes them.",
    ),
    (
        "Graph.sort_edges",
        lambda: stack(graph()).sort_edges(),
        TypeError,
        "senders.ids must be an int32 array of shape (3,), "
        f"got an array of shape (2, 3) and dtype int32. {STACKED}",
    ),
    (
        "Graph.pad_to",
        lambda: stack(graph()).pad_to(4, 4, 4),
        TypeError,
        "senders.ids must be an int32 array of shape (3,), "
        f"got an array of shape (2, 3) and dtype int32. {STACKED}",
    ),
    (
        "Graph.pad_to",
        lambda: graph().pad_to(2, 2, 3),
        ValueError,
        f"num_edges must be at least 3, got 2. {PADDING}",
    ),
    (
        "Graph.pad_to",
        lambda: graph().pad_to(3, 1, 3),
        ValueError,
        f"num_senders must be at least 2, got 1. {PADDING}",
    ),
    (
        "Graph.pad_to",
        lambda: graph().pad_to(3, 2, 2),
        ValueError,
        f"num_receivers must be at least 3, got 2. {PADDING}",
    ),
    (
        "Graph.pad_to",
        lambda: graph().pad_to(3, 2, "3"),
        TypeError,
        f"num_receivers must be {SIZE}, got '3'. Pass num_receivers as a Python int.",
    ),
    (
        "Graph.pad_to",
        lambda: jax.eval_shape(graph).pad_to(3, 2, 3),
        TypeError,
        "senders must be concrete, got a plan whose ids are an object of type ShapeDtypeStruct. "
        "Pad the graph outside of jit, or pass it as an argument.",
    ),
    (
        "IndexPlan.pad_to",
        lambda: plan().pad_to(2, 2),
        ValueError,
        f"num_edges must be at least 3, got 2. {PADDING}",
    ),
    (
        "IndexPlan.pad_to",
        lambda: plan().pad_to(4, 1),
        ValueError,
        f"num_rows must be at least 2, got 1. {PADDING}",
    ),
    (
        "IndexPlan.pad_to",
        lambda: plan().pad_to(4, 2**31),
        ValueError,
        f"num_rows must be {SIZE}, got 2147483648. Pass num_rows in that range; sizes are 32-bit.",
    ),
    (
        "IndexPlan.pad_to",
        lambda: traced(lambda m: plan().pad_to(m, 2).ids, 4),
        TypeError,
        f"num_edges must be {SIZE}, got a traced array of shape () and dtype int32. {STATIC}",
    ),
    (
        "IndexPlan.pad_to",
        lambda: stack(plan()).pad_to(4, 4),
        TypeError,
        "plan.ids must be an int32 array of shape (3,), "
        f"got an array of shape (2, 3) and dtype int32. {STACKED}",
    ),
    (
        "Graph.from_scipy",
        lambda: Graph.from_scipy(np.ones((2, 2))),
        TypeError,
        "A must be a matrix or array of scipy.sparse, got an array of shape (2, 2) and dtype "
        "float64. Make one, for example with scipy.sparse.coo_array.",
    ),
    (
        "Graph.from_scipy",
        lambda: Graph.from_scipy(scipy.sparse.coo_array(np.ones(3))),
        ValueError,
        "A must be two-dimensional, got shape (3,). Reshape it to the matrix of the graph.",
    ),
    (
        "Graph.from_scipy",
        lambda: Graph.from_scipy(scipy.sparse.coo_array(np.ones((2, 2), np.longdouble))),
        TypeError,
        f"A must be of a dtype that JAX has, got dtype {np.dtype(np.longdouble)}. "
        "Cast it first, for example with A.astype('float32').",
    ),
    (
        "Graph.from_bcoo",
        lambda: Graph.from_bcoo(scipy.sparse.coo_array(np.ones((2, 2)))),
        TypeError,
        "M must be a jax.experimental.sparse.BCOO, got an object of type coo_array. "
        "Make one, for example with jax.experimental.sparse.BCOO.fromdense.",
    ),
    (
        "Graph.from_bcoo",
        lambda: Graph.from_bcoo(bcoo((2, 3, 4), n_batch=1)),
        ValueError,
        "M must be two-dimensional, with n_batch = n_dense = 0, "
        f"got shape (2, 3, 4) with n_batch = 1 and n_dense = 0. {BATCH}",
    ),
    (
        "Graph.from_bcoo",
        lambda: Graph.from_bcoo(bcoo((2, 3), n_batch=1)),
        ValueError,
        "M must be two-dimensional, with n_batch = n_dense = 0, "
        f"got shape (2, 3) with n_batch = 1 and n_dense = 0. {BATCH}",
    ),
    (
        "Graph.from_bcoo",
        lambda: Graph.from_bcoo(bcoo((2, 3), n_dense=1)),
        ValueError,
        "M must be two-dimensional, with n_batch = n_dense = 0, "
        f"got shape (2, 3) with n_batch = 0 and n_dense = 1. {BATCH}",
    ),
    (
        "Graph.from_bcoo",
        lambda: Graph.from_bcoo(bcoo((3,))),
        ValueError,
        "M must be two-dimensional, with n_batch = n_dense = 0, "
        f"got shape (3,) with n_batch = 0 and n_dense = 0. {BATCH}",
    ),
    (
        "Graph.from_bcsr",
        lambda: Graph.from_bcsr(bcoo((2, 3))),
        TypeError,
        "M must be a jax.experimental.sparse.BCSR, got an object of type BCOO. "
        "Make one, for example with jax.experimental.sparse.BCSR.fromdense.",
    ),
    (
        "Graph.from_bcsr",
        lambda: Graph.from_bcsr(sparse.BCSR.fromdense(f32(2, 3, 4), n_batch=1)),
        ValueError,
        "M must be two-dimensional, with n_batch = n_dense = 0, "
        f"got shape (2, 3, 4) with n_batch = 1 and n_dense = 0. {BATCH}",
    ),
    (
        "Graph.from_bcsr",
        lambda: Graph.from_bcsr(bcsr([1, 1, 2])),
        ValueError,
        f"M.indptr must be 0 at its start, got M.indptr[0] = 1. {BOUNDS}",
    ),
    (
        "Graph.from_bcsr",
        lambda: Graph.from_bcsr(bcsr([0, 2, 1])),
        ValueError,
        f"M.indptr must be non-decreasing, got M.indptr[1] = 2 and M.indptr[2] = 1. {BOUNDS}",
    ),
    (
        "Graph.from_bcsr",
        lambda: Graph.from_bcsr(bcsr([0, 1, 3])),
        ValueError,
        "M.indptr must be at most 2 at its end (the length of M.indices), got 3. "
        "Pass one column index for each entry of a row.",
    ),
    (
        "Graph.from_bcsr",
        lambda: Graph.from_bcsr(changed(bcsr([0, 1, 2]), indptr=i32(4))),
        ValueError,
        "M.indptr must be an array of shape (3,), got an array of shape (4,) and dtype int32. "
        "Pass the row bounds that belong to M.shape.",
    ),
    (
        "Graph.from_jraph",
        lambda: Graph.from_jraph(([0], [0])),
        TypeError,
        "g must be an object with senders, receivers and n_node, got an object of type tuple. "
        + TUPLE,
    ),
    (
        "Graph.from_jraph",
        lambda: Graph.from_jraph(jraph(n_node=[1.0])),
        TypeError,
        "g.n_node must be integers, got an object of type list. "
        "Pass the number of nodes of each graph.",
    ),
    (
        "Graph.from_jraph",
        lambda: Graph.from_jraph(jraph(n_node=None)),
        TypeError,
        "g.n_node must be concrete where there are no nodes (sizes are part of the program), "
        f"got None. {NO_NODES}",
    ),
    (
        "Graph.from_jraph",
        lambda: traced(lambda n: Graph.from_jraph(jraph(n_node=n)).sender_of, i32(2)),
        TypeError,
        "g.n_node must be concrete where there are no nodes (sizes are part of the program), "
        f"got a traced array of shape (2,) and dtype int32. {NO_NODES}",
    ),
    (
        "Graph.from_jraph",
        lambda: Graph.from_jraph(jraph(senders=[1])),
        IndexError,
        f"every sender must be in [0, 1) (num_senders is 1), got senders[0] = 1. {DROP}",
    ),
    (
        "gather",
        lambda: gather(f32(2), graph()),
        TypeError,
        f"ids must be an integer array, got an object of type Graph. {LIST}",
    ),
]


@pytest.mark.parametrize(
    ("op", "call", "kind", "text"),
    [pytest.param(*case, id=f"{case[0]}-{k}") for k, case in enumerate(TABLE)],
)
def test_refusal(op, call, kind, text):
    with pytest.raises(kind) as refused:
        call()
    assert type(refused.value) is kind
    assert str(refused.value) == f"jax_index.{op}: {text}"
