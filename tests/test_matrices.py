# SPDX-License-Identifier: Apache-2.0
"""Graphs of SciPy matrices, of JAX's own sparse matrices, and of jraph's tuples."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse

from jax_index import Graph, gather, scatter_add

from . import cases, oracle

FORMATS = ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"]


def product(graph, x, weights):
    """A @ x, of ops that have tests of their own."""
    messages = gather(x, graph.senders)
    return scatter_add(messages * weights.reshape(-1, 1), graph.receivers)


def random_matrix(rng, dtype="float32", shape=(9, 14)):
    """A dense matrix of small whole numbers with an empty row and an empty column."""
    dense = cases.small_integers(rng, shape, dtype)
    dense[3] = dense[:, 5] = 0
    return dense


def assert_multiplies(graph, weights, dense, rng):
    assert (graph.num_receivers, graph.num_senders) == dense.shape
    assert weights.shape == (graph.num_edges,)
    x = cases.small_integers(rng, (dense.shape[1], 2), "float32")
    oracle.assert_same(product(graph, jnp.asarray(x), weights), dense @ x)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_scipy_formats(device, rng, name, kind):
    dense = random_matrix(rng)
    A = getattr(scipy.sparse, f"{name}_{kind}")(dense)
    graph, weights = Graph.from_scipy(A)
    assert_multiplies(graph, weights, dense, rng)
    assert weights.dtype == jnp.float32
    assert weights.devices() == {device}
    assert not weights.committed
    stored = A.tocoo()
    assert graph.senders.ids.tolist() == stored.col.tolist()
    assert graph.receivers.ids.tolist() == stored.row.tolist()
    assert weights.tolist() == stored.data.tolist()


def test_scipy_duplicates_order_and_zeros_are_kept(rng):
    rows, columns, values = [2, 0, 2, 1, 2], [1, 0, 1, 3, 0], [1.0, 0.0, 3.0, 4.0, 5.0]
    coo = scipy.sparse.coo_array((np.float32(values), (rows, columns)), shape=(3, 4))
    graph, weights = Graph.from_scipy(coo)
    assert graph.receivers.ids.tolist() == rows
    assert graph.senders.ids.tolist() == columns
    assert weights.tolist() == values
    assert_multiplies(graph, weights, coo.toarray(), rng)
    # A CSR whose rows are not in order of columns, and repeat one.
    csr = scipy.sparse.csr_array((np.float32([1, 2, 3]), [3, 0, 3], [0, 2, 2, 3]), shape=(3, 4))
    graph, weights = Graph.from_scipy(csr)
    assert graph.senders.ids.tolist() == [3, 0, 3]
    assert graph.receivers.ids.tolist() == [0, 0, 2]
    assert graph.receivers.identity
    assert weights.tolist() == [1, 2, 3]


def test_scipy_dtypes(rng):
    dense = random_matrix(rng, "float64")
    assert Graph.from_scipy(scipy.sparse.csr_array(dense))[1].dtype == jnp.float32
    with oracle.x64():
        assert Graph.from_scipy(scipy.sparse.csr_array(dense))[1].dtype == jnp.float64
    assert Graph.from_scipy(scipy.sparse.csr_array(dense != 0))[1].dtype == jnp.bool_
    assert Graph.from_scipy(scipy.sparse.csr_array(dense.astype("int16")))[1].dtype == jnp.int16
    swapped = scipy.sparse.coo_array(dense)
    swapped.data = swapped.data.astype(">f4")
    assert_multiplies(*Graph.from_scipy(swapped), dense.astype(np.float32), rng)
    empty = Graph.from_scipy(scipy.sparse.coo_array((3, 4), dtype=np.float32))[0]
    assert (empty.num_receivers, empty.num_senders, empty.num_edges) == (3, 4, 0)


def test_scipy_values_are_copied():
    # Large, so that JAX could share the memory.
    A = scipy.sparse.coo_array(np.ones((300, 300), np.float32))
    graph, weights = Graph.from_scipy(A)
    A.data[:] = 7
    A.row[:] = 7
    assert set(weights.tolist()) == {1.0}
    assert graph.receivers.indptr[1] == 300


def test_scipy_while_tracing(rng):
    dense = random_matrix(rng)
    made = []

    def program(x):
        made.append(Graph.from_scipy(scipy.sparse.csr_array(dense)))
        return product(made[0][0], x, made[0][1])

    x = cases.small_integers(rng, (14, 2), "float32")
    oracle.assert_same(jax.jit(program)(jnp.asarray(x)), dense @ x)
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(made))


@pytest.mark.parametrize("kind", ["BCOO", "BCSR"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_jax_matrices(device, rng, kind, where):
    dense = random_matrix(rng)
    count = int((dense != 0).sum())
    for padding in (0, 5):
        M = getattr(sparse, kind).fromdense(jnp.asarray(dense), nse=count + padding)
        read = Graph.from_bcoo if kind == "BCOO" else Graph.from_bcsr
        graph, weights = (read if where == "host" else jax.jit(read))(M)
        assert_multiplies(graph, weights, dense, rng)
        np.testing.assert_array_equal(weights, M.data)
        rows, columns = dense.nonzero()
        none = np.full(padding, -1)
        assert graph.receivers.ids.tolist() == [*rows, *none]
        assert graph.senders.ids.tolist() == [*columns, *none]
        if where == "host":
            assert graph.receivers.identity
            assert weights is M.data


def test_half_traced_rows_and_columns(rng):
    dense = random_matrix(rng)
    M = sparse.BCSR.fromdense(jnp.asarray(dense), nse=int((dense != 0).sum()) + 2)
    expected, _ = Graph.from_bcsr(M)
    rebuilt = lambda columns, bounds: Graph.from_bcsr(  # noqa: E731
        sparse.BCSR((M.data, columns, bounds), shape=M.shape)
    )[0]
    assert jax.jit(lambda columns: rebuilt(columns, M.indptr))(M.indices) == expected
    assert jax.jit(lambda bounds: rebuilt(M.indices, bounds))(M.indptr) == expected


def test_what_stands_out_of_range_is_dropped(rng):
    dense = np.float32([[0, 2, 0], [5, 0, 7]])
    values = jnp.array([2.0, jnp.nan, 5.0, 7.0, jnp.nan, jnp.nan])
    pairs = jnp.array([[0, 1], [2, 0], [1, 0], [1, 2], [0, 3], [-1, 0]])
    M = sparse.BCOO((values, pairs), shape=(2, 3))
    for graph, weights in (Graph.from_bcoo(M), jax.jit(Graph.from_bcoo)(M)):
        assert_multiplies(graph, weights, dense, rng)
        assert graph.senders.ids.tolist() == [1, -1, 0, 2, -1, -1]
    M = sparse.BCSR((values[:4], jnp.array([1, 3, 0, 2]), jnp.array([0, 2, 4])), shape=(2, 3))
    for graph, weights in (Graph.from_bcsr(M), jax.jit(Graph.from_bcsr)(M)):
        assert_multiplies(graph, weights, dense, rng)
        assert graph.receivers.ids.tolist() == [0, -1, 1, 1]
    # Behind the last row, columns in range are padding too.
    M = sparse.BCSR((values[:4], jnp.array([1, 0, 2, 0]), jnp.array([0, 1, 3])), shape=(2, 3))
    for graph, _ in (Graph.from_bcsr(M), jax.jit(Graph.from_bcsr)(M)):
        assert graph.receivers.ids.tolist() == [0, 1, 1, -1]
        assert graph.senders.ids.tolist() == [1, 0, 2, -1]


def test_jax_matrices_keep_duplicates(rng):
    pairs = jnp.array([[1, 0], [0, 2], [1, 0]])
    M = sparse.BCOO((jnp.array([1.0, 2.0, 3.0]), pairs), shape=(2, 3))
    graph, weights = Graph.from_bcoo(M)
    assert graph.num_edges == 3
    assert_multiplies(graph, weights, np.asarray(M.todense()), rng)


def test_a_batch_of_matrices_goes_through_vmap(rng):
    dense = np.stack([random_matrix(rng), random_matrix(rng)])
    x = cases.small_integers(rng, (14, 2), "float32")

    def each(matrix):
        M = sparse.BCOO.fromdense(matrix, nse=9 * 14)
        return product(
            *(lambda graph, weights: (graph, jnp.asarray(x), weights))(*Graph.from_bcoo(M))
        )

    oracle.assert_same(jax.vmap(each)(jnp.asarray(dense)), dense @ x)


class GraphsTuple(NamedTuple):
    """The fields of jraph's tuple of this name."""

    nodes: Any
    edges: Any
    receivers: Any
    senders: Any
    globals: Any
    n_node: Any
    n_edge: Any


def graphs_tuple(nodes=None, n_node=(2, 3, 1)):
    # The last graph is padding: its edges join its only node.
    return GraphsTuple(
        nodes=nodes,
        edges=None,
        senders=jnp.array([0, 1, 4, 2, 5, 5]),
        receivers=jnp.array([1, 0, 3, 2, 5, 5]),
        globals=None,
        n_node=jnp.array(n_node) if n_node is not None else None,
        n_edge=jnp.array([2, 2, 2]),
    )


def test_jraph_graphs():
    expected = Graph([0, 1, 4, 2, 5, 5], [1, 0, 3, 2, 5, 5], num_senders=6, num_receivers=6)
    assert Graph.from_jraph(graphs_tuple()) == expected
    nodes = {"position": jnp.ones((6, 2)), "kind": jnp.ones(6)}
    assert Graph.from_jraph(graphs_tuple(nodes)) == expected
    assert Graph.from_jraph(graphs_tuple(nodes, None)) == expected
    # Under jit n_node is traced: the nodes say how many they are.
    assert jax.jit(Graph.from_jraph)(graphs_tuple(nodes)) == expected
    plain = types.SimpleNamespace(senders=[0, 2], receivers=[1, 0], n_node=[2, 1])
    assert Graph.from_jraph(plain).num_receivers == 3
    # The sum is of whole numbers, whatever their type.
    plain.n_node = np.array([200, 100], np.uint8)
    assert Graph.from_jraph(plain).num_receivers == 300


def test_no_library_is_imported_before_it_is_needed():
    code = (
        "import sys, jax, jax_index\n"
        "print([m for m in ('jraph', 'jax.experimental.sparse') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
