# SPDX-License-Identifier: Apache-2.0
"""Gather, scatter-add and graph message passing for JAX.

At memory speed, with the same bits on every machine.
"""

__version__ = "0.0.1"

from jax_index._graph import Graph as Graph
from jax_index._native import backends as backends
from jax_index._plan import IndexPlan as IndexPlan
from jax_index._plan import make_plan as make_plan
from jax_index._plan import make_plan_from_indptr as make_plan_from_indptr
from jax_index.ops.rows import gather as gather
from jax_index.ops.rows import index_add as index_add
from jax_index.ops.rows import scatter_add as scatter_add

__all__ = [
    "Graph",
    "IndexPlan",
    "backends",
    "gather",
    "index_add",
    "make_plan",
    "make_plan_from_indptr",
    "scatter_add",
]
