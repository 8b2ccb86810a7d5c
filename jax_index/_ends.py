# SPDX-License-Identifier: Apache-2.0
"""The two ends of edges: read from plans or ids, then made to drop the same edges."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _check, _csr, _ids, _plan
from jax_index._plan import IndexPlan

Linked = tuple[IndexPlan, IndexPlan, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class End:
    """One end of each edge: int32 rows (-1 where there is none), and their plan if one was given.

    The rows are a NumPy array, or traced.
    """

    rows: Any
    num_rows: int
    plan: IndexPlan | None

    @property
    def traced(self) -> bool:
        """Whether anything of it is known on the device alone."""
        leaves = (self.rows, *(self.plan.arrays if self.plan is not None else ()))
        return any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)


def read_ends(
    op: str, senders: Any, receivers: Any, num_senders: Any, num_receivers: Any, mode: Any
) -> tuple[End, End]:
    """Check both ends for `op`."""
    if mode is not None:
        if not isinstance(mode, str) or mode not in _plan.MODES:
            fix = "-1 never wraps; use 'drop' for padding."
            _check.fail(ValueError, op, "mode", "None, 'raise' or 'drop'", repr(mode), fix)
        if isinstance(senders, IndexPlan) and isinstance(receivers, IndexPlan):
            fix = "The plans were made with a mode already."
            _check.fail(ValueError, op, "mode", "None with two plans", repr(mode), fix)
    ends = (
        _read(op, "senders", senders, num_senders, mode),
        _read(op, "receivers", receivers, num_receivers, mode),
    )
    counts = [end.rows.shape[0] for end in ends]
    if counts[0] != counts[1]:
        expected = f"as many as the senders ({counts[0]})"
        fix = "Pass one sender and one receiver for each edge."
        _check.fail(ValueError, op, "receivers", expected, str(counts[1]), fix)
    return ends


def _read(op: str, name: str, given: Any, num_rows: Any, mode: str | None) -> End:
    rows_name = _plan.rows_name(name)
    if isinstance(given, IndexPlan):
        if num_rows is not None and num_rows != given.num_rows:
            fix = f"Leave {rows_name} out, or use the plan made for it."
            expected = f"None or the plan's {given.num_rows}"
            _check.fail(ValueError, op, rows_name, expected, str(num_rows), fix)
        _plan.check_leaves(op, given, name)
        if isinstance(given.ids, jax.core.Tracer):
            return End(_csr.traced_rows(given.ids, given.num_rows), given.num_rows, given)
        ids = _plan.concrete_ids(op, given, "Build", name)
        return End(_plan.canonical(ids, given.num_rows), given.num_rows, given)
    if num_rows is None:
        fix = f"Pass {rows_name}=, or a plan."
        _check.fail(ValueError, op, rows_name, f"given with raw {name}", "None", fix)
    num_rows = _check.size(op, rows_name, num_rows)
    if isinstance(given, jax.core.Tracer):
        rows = _plan.traced_rows(op, given, num_rows, mode or "drop", name)
        return End(rows, num_rows, None)
    host = _ids.host_ids(op, given, name)
    rows = _plan.canonical(host, num_rows)
    if rows is host:
        # The caller may write to it meanwhile.
        rows = rows.copy()
    if mode != "drop" and (rows < 0).any():
        _plan.refuse_id(op, given, host, int(np.argmax(rows < 0)), num_rows, name)
    return End(rows, num_rows, None)


def linked(senders: End, receivers: End) -> Linked:
    """Drop the edges that one end drops at the other too; return the fields of the graph."""
    ends = (senders, receivers)
    if any(end.traced for end in ends):
        return _linked_traced(*ends)
    dropped = (senders.rows < 0) | (receivers.rows < 0)
    plans, kept = [], []
    for end in ends:
        plan, rows = end.plan, end.rows
        if (dropped & (rows >= 0)).any():
            plan, rows = None, np.where(dropped, np.int32(-1), rows)
        plans.append(plan if plan is not None else _plan.build("Graph", rows, end.num_rows, "drop"))
        kept.append(rows)
    # In NumPy: JAX would compile a look-up for each size.
    others = [
        np.take(kept[0], np.asarray(plans[1].perm), mode="clip"),
        np.take(kept[1], np.asarray(plans[0].perm), mode="clip"),
    ]
    sender_of, receiver_of = _csr.concrete(others)
    return plans[0], plans[1], sender_of, receiver_of


def _linked_traced(senders: End, receivers: End) -> Linked:
    dropped = (jnp.asarray(senders.rows) < 0) | (jnp.asarray(receivers.rows) < 0)
    plans, kept = [], []
    for end in (senders, receivers):
        rows = jnp.where(dropped, -1, jnp.asarray(end.rows))
        plan = _plan.build_traced(rows, end.num_rows)
        if end.plan is not None:
            # Rows only lose edges.
            plan = dataclasses.replace(plan, no_long_row=end.plan.no_long_row)
        plans.append(plan)
        kept.append(rows)
    sender_of = jnp.take(kept[0], plans[1].perm, mode="clip")
    receiver_of = jnp.take(kept[1], plans[0].perm, mode="clip")
    return plans[0], plans[1], sender_of, receiver_of
