# SPDX-License-Identifier: Apache-2.0
"""Programs that leave the process: what `jax.export` has to know of this package.

Nothing here starts a JAX back end.
"""

from __future__ import annotations

import json
from typing import Any

import jax.export

from jax_index import _native
from jax_index._graph import Graph
from jax_index._plan import IndexPlan
from jax_index._static import PlanKey, StaticGraph, StaticPlan


def export_checks() -> list[jax.export.DisabledSafetyCheck]:
    """Return what `jax.export.export` needs as ``disabled_checks`` to take this package's kernels.

    `jax.export` refuses every custom call that JAX itself does not vouch for, since a saved program
    names its kernels and can run only where they are registered. Programs that hold ops of this
    package run where jax_index is imported: on the CPU, and on CUDA where the CUDA part is
    installed. A program can be exported for a platform that this machine does not have; the
    compiled part for it decides, as in every lowering, between kernels and pure JAX, see
    :func:`backends`. Plans and graphs may be arguments and results of a serialised program.

    Returns:
        A `jax.export.DisabledSafetyCheck.custom_call` for each kernel of this package; join other
        libraries' lists to it. No JAX back end is started.

    Example:
        >>> import jax, jax.export, jax.numpy as jnp, jax_index
        >>> plan = jax_index.make_plan([0, 2, 0], num_rows=3)
        >>> step = jax.jit(jax_index.scatter_add)
        >>> allowed = jax_index.export_checks()
        >>> exported = jax.export.export(step, platforms=["cpu"], disabled_checks=allowed)
        >>> exported(jnp.ones(3), plan).call(jnp.array([1.0, 2.0, 4.0]), plan).tolist()
        [5.0, 0.0, 2.0]
    """
    allow = jax.export.DisabledSafetyCheck.custom_call
    return [allow(_native.PREFIX + op) for op in sorted(_native.LOWERED)]


def _to_bytes(static: Any) -> bytes:
    """Write the static part of a pytree node: None, or a tuple of sizes and flags."""
    return json.dumps(static).encode()


def _from_bytes(content: bytes) -> Any:
    static = json.loads(content)
    return static if static is None else tuple(static)


def _plan_key(content: bytes) -> Any:
    return PlanKey(*json.loads(content))


def _graph_key(content: bytes) -> Any:
    senders, receivers, *links = json.loads(content)
    return PlanKey(*senders), PlanKey(*receivers), *links


for _node, _from in (
    (IndexPlan, _from_bytes),
    (Graph, _from_bytes),
    (StaticPlan, _plan_key),
    (StaticGraph, _graph_key),
):
    jax.export.register_pytree_node_serialization(
        _node,
        serialized_name=f"jax_index.{_node.__name__}",
        serialize_auxdata=_to_bytes,
        deserialize_auxdata=_from,
    )
