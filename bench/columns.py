# SPDX-License-Identifier: Apache-2.0
"""The columns of the main job: every implementation that the model is trained with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.host_round_trip import host_gather, host_plan, host_scatter_add, host_segment_max
from bench.ops import Edges, Ops

DETERMINISTIC_FLAG = "--xla_gpu_deterministic_ops=true"


@dataclasses.dataclass(frozen=True)
class XlaPlan:
    """ids int32 [m] and, static, the number of rows."""

    ids: jax.Array
    num_rows: int


jax.tree_util.register_dataclass(XlaPlan, data_fields=["ids"], meta_fields=["num_rows"])


def _xla_gather(x: jax.Array, plan: XlaPlan) -> jax.Array:
    return x.at[plan.ids].get(mode="promise_in_bounds")


def _xla_scatter_add(y: jax.Array, plan: XlaPlan) -> jax.Array:
    rows = jnp.zeros((plan.num_rows, *y.shape[1:]), y.dtype)
    return rows.at[plan.ids].add(y, mode="promise_in_bounds")


def _xla_segment_max(y: jax.Array, plan: XlaPlan) -> jax.Array:
    return jax.ops.segment_max(y, plan.ids, plan.num_rows, mode="promise_in_bounds")


def _xla() -> Ops:
    def plan(ids: np.ndarray, num_rows: int) -> XlaPlan:
        return XlaPlan(jnp.asarray(ids, jnp.int32), num_rows)

    return Ops("xla", plan, _xla_gather, _xla_scatter_add, _xla_segment_max)


def _host() -> Ops:
    return Ops("host", host_plan, host_gather, host_scatter_add, host_segment_max)


def _jax_index() -> Ops:
    import jax_index  # here, so that the other columns run where it is not installed

    return Ops(
        "jax_index",
        jax_index.make_plan,
        partial(jax_index.gather, lowering="kernel"),
        jax_index.scatter_add,
        jax_index.segment_max,
    )


def _jax_index_fused() -> Ops:
    import jax_index

    def graph(senders: np.ndarray, receivers: np.ndarray, num_nodes: int) -> Any:
        return jax_index.Graph(senders, receivers, num_senders=num_nodes, num_receivers=num_nodes)

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
        return jax_index.graph_attention(
            edges.graph,
            q,
            k,
            v,
            scale=scale,
            score_weights=score_weights,
            clip=None if limit is None else (-limit, limit),
            normalize="softmax" if limit is None else "sum",
            denominator_offset=offset,
        )

    opaque = _jax_index()
    return dataclasses.replace(
        opaque,
        name="jax_index-fused",
        gather=_fusible_gather(),
        make_graph=graph,
        fused=attention,
    )


def _fusible_gather() -> Callable[[jax.Array, Any], jax.Array]:
    """The gather that XLA fuses into what consumes it; its adjoint is the kernel's row sum."""
    import jax_index

    return partial(jax_index.gather, lowering="native")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its title, its operations, and what it asks of its process.

    flags: added to XLA_FLAGS, hence one process a column. pinned: matmul autotuning is switched
    off even when it is timed, for its bits are the reference and its time is copies.
    """

    title: str
    make_ops: Callable[[], Ops]
    flags: tuple[str, ...] = ()
    pinned: bool = False


COLUMNS = {
    "host": Column("host round trip", _host, pinned=True),
    "xla": Column("XLA native", _xla),
    "xla-deterministic": Column("XLA deterministic", _xla, (DETERMINISTIC_FLAG,)),
    "jax_index": Column("jax_index opaque", _jax_index),
    "jax_index-fused": Column("jax_index fused", _jax_index_fused),
}
REFERENCE, SUBJECT = "host", "jax_index"  # the two columns whose bits must be equal
FUSED = "jax_index-fused"  # the column whose own runs must have equal bits
