# SPDX-License-Identifier: Apache-2.0
"""What the axes of every primitive are where a program is cut over devices: one table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from jax_index import _traced
from jax_index._sharding import EDGES, SUMMED, WHOLE, Parts

# indptr, perm and tasks: what follows the ids among the arrays of a plan.
_CSR = ((WHOLE,), (WHOLE,), (WHOLE, WHOLE))


def _fold(*data: tuple[int, str], first: int = 1) -> Parts:
    """Return the parts of a sum over the rows of a plan whose arrays begin at operand `first`."""
    plan = [(first, (WHOLE,)), *((first + 1 + k, kinds) for k, kinds in enumerate(_CSR))]
    return Parts(data, plan)


def _gather(**_: Any) -> Parts:
    # The kernel may walk rows, of which a device with a part of the edges has parts.
    local = lambda p, edges: {**p, "lowering": "native"}  # noqa: E731
    plan = [(1, (EDGES,)), *((2 + k, kinds) for k, kinds in enumerate(_CSR))]
    return Parts([(0, WHOLE)], plan, EDGES, local=local)


def _scatter_add(allow_reduction: bool = False, **_: Any) -> Parts:
    parts = _fold((0, SUMMED))
    if not allow_reduction:
        return parts
    return parts._replace(plan=[(1, (SUMMED,)), *parts.plan[1:]], add=_add_sums)


def _index_add(**_: Any) -> Parts:
    return _fold((0, WHOLE), (1, SUMMED), first=2)


def _extremum(**_: Any) -> Parts:
    return _fold((0, SUMMED))._replace(op="segment_*")


def _product(**_: Any) -> Parts:
    return _fold((0, SUMMED))


def _row_map(by_row: bool, by_edge: bool, **_: Any) -> Parts:
    kinds = [WHOLE] * by_row + [SUMMED] * by_edge
    parts = _fold((0, SUMMED), *((5 + k, kind) for k, kind in enumerate(kinds)))
    return parts._replace(op="segment_*")


def _spmm(weighted: bool, divided: bool, additive: int, gathered: bool, **_: Any) -> Parts:
    kinds = [WHOLE if gathered else SUMMED] * weighted + [WHOLE] * (divided or additive > 0)
    parts = _fold((0, WHOLE), *((6 + k, kind) for k, kind in enumerate(kinds)))
    return parts._replace(plan=[*parts.plan, (5, (WHOLE,))])


def _sddmm(
    additive: bool, ordered: bool, x_indexed: bool, y_indexed: bool, depth_axes: int, **_: Any
) -> Parts:
    # Indices that stand in the order of rows say nothing about a part of the edges.
    edges = WHOLE if ordered else EDGES
    data = [
        (0, WHOLE if x_indexed else edges),
        (1, WHOLE if y_indexed else edges),
        *[(2, WHOLE)] * additive,
    ]
    indices = [(edges,)] * (ordered + x_indexed + y_indexed)
    plan = [(len(data) + k, kinds) for k, kinds in enumerate(indices)]
    local = lambda p, count: {**p, "num_edges": count}  # noqa: E731
    return Parts(data, plan, edges, depth_axes, local, _add_dots)


def _pointwise(by_row: tuple[bool, ...], indexed: bool, **_: Any) -> Parts:
    data = [(k, WHOLE if row else EDGES) for k, row in enumerate(by_row)]
    return Parts(data, [(len(data), (EDGES,))] * indexed, EDGES)


def _convert(**_: Any) -> Parts:
    return Parts([(0, EDGES)])


# The primitive's parameters to its parts.
TABLE: dict[str, Callable[..., Parts]] = {
    "gather": _gather,
    "scatter_add": _scatter_add,
    "index_add": _index_add,
    "segment_extremum": _extremum,
    "segment_prod": _product,
    "row_map": _row_map,
    "spmm": _spmm,
    "sddmm": _sddmm,
    "pointwise": _pointwise,
    "convert": _convert,
}


# --- Sums over devices: their bits depend on the number of devices and are not promised ----------


def _wide(dtype: Any) -> Any:
    """Return the dtype that parts of a sum are added in: 32 bits at least."""
    if dtype.itemsize >= 4:
        return dtype
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.dtype("float32")
    return jnp.dtype("uint32" if jnp.issubdtype(dtype, jnp.unsignedinteger) else "int32")


def _add_dots(primitive: Primitive, names: Any, *operands: Any, dtype: Any, **p: Any) -> Any:
    wide = jnp.promote_types(_wide(jnp.dtype(dtype)), dtype)
    (out,) = primitive.bind(*operands, dtype=wide, **p)
    return jax.lax.psum(out, names).astype(dtype)


def _add_sums(
    primitive: Primitive,
    names: Any,
    y: jax.Array,
    ids: jax.Array,
    indptr: jax.Array,
    *csr: Any,
    **p: Any,
) -> Any:
    """Sum a device's edges into all rows, by a plan of these edges made on the device; add."""
    del csr
    n = indptr.shape[-1] - 1
    plan = lambda rows: _traced.from_traced_rows(rows, n)  # noqa: E731
    for _ in p["plan_axes"]:
        plan = jax.vmap(plan)
    kept, float4 = y.dtype, p["float4"]
    if float4:
        y = jax.lax.bitcast_convert_type(y.astype(jnp.uint4), jnp.float4_e2m1fn)
    y = y.astype(_wide(y.dtype))
    # What is known of the whole plan is not known of one made here.
    flags = {"identity": False, "no_long_row": False, "float4": False, "allow_reduction": False}
    out, _ = primitive.bind(y, *plan(ids), **{**p, **flags})
    out = jax.lax.psum(out, names)
    if float4:
        narrow = jax.lax.bitcast_convert_type(out.astype(jnp.float4_e2m1fn), jnp.uint4)
        return narrow.astype(kept)
    return out.astype(kept)
