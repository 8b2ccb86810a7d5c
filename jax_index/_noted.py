# SPDX-License-Identifier: Apache-2.0
"""What a backward function needs of the arguments besides what is saved for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax


class Noted(NamedTuple):
    """A pytree without leaves.

    The structure of what is saved holds the keys of static plans alone. They stand here once more
    as they are, so that a backward function that somebody keeps owns the arrays that its program,
    traced when it is called, will name.
    """

    shardings: tuple[Any, ...]
    static: tuple[Any, ...]


jax.tree_util.register_pytree_node(Noted, lambda noted: ((), noted), lambda noted, _: noted)


def of(arguments: Sequence[Any]) -> Noted:
    """Note the shardings over an explicit mesh, and the static plans and graphs, of arguments."""
    return Noted(tuple(_shardings(a) for a in arguments), static_among(arguments))


def static_among(arguments: Any) -> tuple[Any, ...]:
    """Return the static plans and graphs among arguments."""
    leaves = jax.tree.leaves(arguments, is_leaf=is_static)
    return tuple(leaf for leaf in leaves if is_static(leaf))


def is_static(value: Any) -> bool:
    """Say whether a value is a static plan or graph."""
    return getattr(value, "is_static", False)


def _shardings(argument: Any) -> Any:
    """Return the sharding of each leaf; nothing where no mesh is explicit."""
    found = []
    for leaf in jax.tree.leaves(argument):
        sharding = getattr(jax.typeof(leaf), "sharding", None) if hasattr(leaf, "aval") else None
        explicit = sharding is not None and "Explicit" in str(sharding.mesh.axis_types)
        found.append(sharding if explicit else None)
    return tuple(found) if any(s is not None for s in found) else ()


def resharded(cotangent: Any, wanted: Any) -> Any:
    """Give a cotangent the shardings that were noted of its argument."""
    leaves, form = jax.tree.flatten(cotangent)
    if not wanted or len(leaves) != len(wanted):
        return cotangent
    for k, (leaf, sharding) in enumerate(zip(leaves, wanted, strict=True)):
        if sharding is None or not isinstance(leaf, jax.core.Tracer):
            continue
        if jax.typeof(leaf).sharding != sharding:
            leaves[k] = jax.sharding.reshard(leaf, sharding)
    return jax.tree.unflatten(form, leaves)
