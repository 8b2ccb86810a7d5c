# SPDX-License-Identifier: Apache-2.0
"""The ops of the package, differentiable in every mode.

Same names, kernels and bits. Those of :mod:`jax_index` have reverse mode alone, of any order, which
is what training needs; these have ``jvp``, ``linearize``, ``jacfwd``, ``hessian`` and, where they
are linear, ``linear_transpose`` as well, in any order and mixture. With ``JAX_INDEX_AD=any`` in the
environment at import the names of :mod:`jax_index` are these too.

    >>> import jax, jax.numpy as jnp
    >>> from jax_index import primitives
    >>> energy = lambda x: jnp.sum(primitives.segment_sum(x, [0, 0, 1], 2) ** 2)
    >>> jax.hessian(energy)(jnp.array([0.0, 1.0, 2.0])).tolist()
    [[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 2.0]]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from jax_index import _ad
from jax_index.ops import attention, matmul, rows, segments

P = ParamSpec("P")
R = TypeVar("R")


def _every(op: Callable[P, R]) -> Callable[P, R]:
    """Return an op that is differentiable in every mode."""
    out = _ad.in_any_mode(op)
    out.__module__ = __name__
    # The example of the op itself is run where it stands.
    text = (op.__doc__ or "").split("Example:")[0].rstrip()
    out.__doc__ = f"{text}\n\n    Differentiable in every mode, forward mode included.\n    "
    return out


edge_softmax = _every(attention.edge_softmax)
gat_attention = _every(attention.gat_attention)
gather = _every(rows.gather)
graph_attention = _every(attention.graph_attention)
index_add = _every(rows.index_add)
scatter_add = _every(rows.scatter_add)
sddmm = _every(matmul.sddmm)
segment_logsumexp = _every(segments.segment_logsumexp)
segment_max = _every(segments.segment_max)
segment_mean = _every(segments.segment_mean)
segment_min = _every(segments.segment_min)
segment_prod = _every(segments.segment_prod)
segment_softmax = _every(segments.segment_softmax)
segment_std = _every(segments.segment_std)
segment_sum = _every(segments.segment_sum)
segment_var = _every(segments.segment_var)
spmm = _every(matmul.spmm)

__all__ = [
    "edge_softmax",
    "gat_attention",
    "gather",
    "graph_attention",
    "index_add",
    "scatter_add",
    "sddmm",
    "segment_logsumexp",
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_softmax",
    "segment_std",
    "segment_sum",
    "segment_var",
    "spmm",
]
