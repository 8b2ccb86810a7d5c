# SPDX-License-Identifier: Apache-2.0
"""Gather, scatter-add and graph message passing for JAX.

At memory speed, with the same bits on every machine.
"""

__version__ = "0.0.1"

from jax_index._export import export_checks as export_checks
from jax_index._graph import Graph as Graph
from jax_index._native import backends as backends
from jax_index._partition import Partition as Partition
from jax_index._partition import partition as partition
from jax_index._plan import IndexPlan as IndexPlan
from jax_index._plan import make_plan as make_plan
from jax_index._plan import make_plan_from_indptr as make_plan_from_indptr
from jax_index._static import StaticGraph as StaticGraph
from jax_index._static import StaticPlan as StaticPlan
from jax_index._store import LivePlan as LivePlan
from jax_index._store import live_plans as live_plans
from jax_index.ops.attention import edge_softmax as edge_softmax
from jax_index.ops.attention import gat_attention as gat_attention
from jax_index.ops.attention import graph_attention as graph_attention
from jax_index.ops.matmul import sddmm as sddmm
from jax_index.ops.matmul import spmm as spmm
from jax_index.ops.part import GraphPart as GraphPart
from jax_index.ops.rows import gather as gather
from jax_index.ops.rows import index_add as index_add
from jax_index.ops.rows import scatter_add as scatter_add
from jax_index.ops.segments import segment_logsumexp as segment_logsumexp
from jax_index.ops.segments import segment_max as segment_max
from jax_index.ops.segments import segment_mean as segment_mean
from jax_index.ops.segments import segment_min as segment_min
from jax_index.ops.segments import segment_prod as segment_prod
from jax_index.ops.segments import segment_softmax as segment_softmax
from jax_index.ops.segments import segment_std as segment_std
from jax_index.ops.segments import segment_sum as segment_sum
from jax_index.ops.segments import segment_var as segment_var

__all__ = [
    "Graph",
    "GraphPart",
    "IndexPlan",
    "LivePlan",
    "Partition",
    "StaticGraph",
    "StaticPlan",
    "backends",
    "edge_softmax",
    "export_checks",
    "gat_attention",
    "gather",
    "graph_attention",
    "index_add",
    "live_plans",
    "make_plan",
    "make_plan_from_indptr",
    "partition",
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
