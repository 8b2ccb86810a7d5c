# SPDX-License-Identifier: Apache-2.0
"""The columns of the main job: every implementation that the model is trained with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bench.host_round_trip import host_gather, host_plan, host_scatter_add
from bench.ops import Ops

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


def _xla() -> Ops:
    def plan(ids: np.ndarray, num_rows: int) -> XlaPlan:
        return XlaPlan(jnp.asarray(ids, jnp.int32), num_rows)

    return Ops("xla", plan, _xla_gather, _xla_scatter_add)


def _host() -> Ops:
    return Ops("host", host_plan, host_gather, host_scatter_add)


def _jax_index() -> Ops:
    import jax_index  # here, so that the other columns run where it is not installed

    return Ops("jax_index", jax_index.make_plan, jax_index.gather, jax_index.scatter_add)


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
    "jax_index": Column("jax_index", _jax_index),
}
REFERENCE, SUBJECT = "host", "jax_index"  # the two columns whose bits must be equal
