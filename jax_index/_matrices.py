# SPDX-License-Identifier: Apache-2.0
"""Sparse matrices and graphs of other libraries, read as the two ends of edges.

None of the libraries is imported before one of its objects is given.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _check, _csr, _plan
from jax_index._ends import End, read_ends

Ends = tuple[End, End]


def scipy_ends(op: str, A: Any) -> tuple[Ends, jax.Array]:
    """Read a matrix of scipy.sparse: its ends, and its values."""
    # Who has such a matrix has imported the module.
    sparse: Any = sys.modules.get("scipy.sparse")
    if sparse is None or not sparse.issparse(A):
        fix = "Make one, for example with scipy.sparse.coo_array."
        expected = "a matrix or array of scipy.sparse"
        _check.fail(TypeError, op, "A", expected, _check.describe(A), fix)
    if A.ndim != 2:
        fix = "Reshape it to the matrix of the graph."
        _check.fail(ValueError, op, "A", "two-dimensional", f"shape {A.shape}", fix)
    coo = A.tocoo()
    n, k = coo.shape
    ends = read_ends(op, coo.col, coo.row, k, n, None)
    # A copy in any case: on the CPU, JAX may share the memory of the array it is given.
    values = np.array(coo.data, coo.data.dtype.newbyteorder("="))
    try:
        (weights,) = _csr.concrete((values,))
    except TypeError:
        fix = "Cast it first, for example with A.astype('float32')."
        expected = "of a dtype that JAX has"
        _check.fail(TypeError, op, "A", expected, f"dtype {values.dtype}", fix)
    return ends, weights


def _matrix(op: str, M: Any, kind: str) -> tuple[int, int]:
    """Check a matrix of jax.experimental.sparse; return its shape."""
    from jax.experimental import sparse

    if not isinstance(M, getattr(sparse, kind)):
        fix = f"Make one, for example with jax.experimental.sparse.{kind}.fromdense."
        expected = f"a jax.experimental.sparse.{kind}"
        _check.fail(TypeError, op, "M", expected, _check.describe(M), fix)
    if len(M.shape) != 2 or M.n_batch or M.n_dense:
        fix = "Go over a batch with jax.vmap; sparsify dense dimensions first."
        expected = "two-dimensional, with n_batch = n_dense = 0"
        given = f"shape {M.shape} with n_batch = {M.n_batch} and n_dense = {M.n_dense}"
        _check.fail(ValueError, op, "M", expected, given, fix)
    return M.shape


def bcoo_ends(op: str, M: Any) -> tuple[Ends, jax.Array]:
    """Read a BCOO; its padding has indices out of range."""
    n, k = _matrix(op, M, "BCOO")
    pairs = M.indices if isinstance(M.indices, jax.core.Tracer) else np.asarray(M.indices)
    return read_ends(op, pairs[:, 1], pairs[:, 0], k, n, "drop"), M.data


def bcsr_ends(op: str, M: Any) -> tuple[Ends, jax.Array]:
    """Read a BCSR; its padding stands behind the last row."""
    n, k = _matrix(op, M, "BCSR")
    count = M.indices.shape[0]
    if M.indptr.shape != (n + 1,):
        fix = "Pass the row bounds that belong to M.shape."
        expected = f"an array of shape {(n + 1,)}"
        _check.fail(ValueError, op, "M.indptr", expected, _check.describe(M.indptr), fix)
    if isinstance(M.indptr, jax.core.Tracer):
        place = jax.lax.iota(M.indptr.dtype, count)
        # What stands behind the last row counts as row n, which is none.
        receivers = jnp.searchsorted(M.indptr, place, side="right").astype(jnp.int32) - 1
        return read_ends(op, M.indices, receivers, k, n, "drop"), M.data
    plan = _plan.build_from_bounds(op, M.indptr, "M.indptr")
    if plan.num_edges > count:
        fix = "Pass one column index for each entry of a row."
        expected = f"at most {count} at its end (the length of M.indices)"
        _check.fail(ValueError, op, "M.indptr", expected, str(plan.num_edges), fix)
    return read_ends(op, M.indices, plan.pad_to(count, n), k, None, "drop"), M.data


def jraph_ends(op: str, g: Any) -> Ends:
    """Read what has the fields of a jraph.GraphsTuple."""
    for name in ("senders", "receivers", "n_node"):
        if not hasattr(g, name):
            fix = "Pass a jraph.GraphsTuple, or use Graph(senders, receivers, ...)."
            expected = "an object with senders, receivers and n_node"
            _check.fail(TypeError, op, "g", expected, _check.describe(g), fix)
    n = _num_nodes(op, g)
    return read_ends(op, g.senders, g.receivers, n, n, None)


def _num_nodes(op: str, g: Any) -> int:
    if g.n_node is not None and not isinstance(g.n_node, jax.core.Tracer):
        counts = np.asarray(g.n_node)
        if counts.dtype.kind not in "iu":
            fix = "Pass the number of nodes of each graph."
            _check.fail(TypeError, op, "g.n_node", "integers", _check.describe(g.n_node), fix)
        return int(counts.sum())
    nodes = jax.tree.leaves(getattr(g, "nodes", None))
    if not nodes:
        fix = "Pass n_node or nodes, or use Graph with num_senders= and num_receivers=."
        expected = "concrete where there are no nodes (sizes are part of the program)"
        _check.fail(TypeError, op, "g.n_node", expected, _check.describe(g.n_node), fix)
    return int(nodes[0].shape[0])
