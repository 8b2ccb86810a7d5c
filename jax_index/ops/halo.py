# SPDX-License-Identifier: Apache-2.0
"""Rows and edges that the parts of a graph send each other, and linear ops with equal bits.

A part owns nodes. It keeps the edges that enter them (near) and those that leave them (far), each
in the caller's order, so that a sum over either has the bits of the unsharded one. What stands at
the other ends comes by one all_to_all. Every derivative is one of these ops again, on ``part.T``.

Ops take the rows of a part, and as `reach` the same rows with the halo behind them where that was
received already (a constant: derivatives go to the rows), else None.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_index import _ad, _primitive
from jax_index._blocks import Rounds
from jax_index._graph import Graph
from jax_index._plan import IndexPlan
from jax_index.ops import rows
from jax_index.ops.matmul import edge_dots, weighted_sum


class Half(NamedTuple):
    """The edges at one end of a part's nodes.

    graph: from [rows | halo] of the other end to the part's rows. row_ids, edge_ids: the numbers of
    rows and edges in the whole graph, -1 as padding. send: the rows of the other end's
    kind to send, by target. edge_send: edges to send to the owners of the other end, by target.
    edge_source: of each edge, its place in [edges of the other half | received ones].
    """

    graph: Graph
    row_ids: jax.Array
    edge_ids: jax.Array
    send: IndexPlan
    edge_send: jax.Array
    edge_source: jax.Array


class Routes(NamedTuple):
    """The rounds of each exchange, where parts send in rounds; see ``_blocks.Lanes``.

    Static: a part of the program, the same in all processes.
    """

    near: Rounds
    far: Rounds
    edges: Rounds


def turned(rounds: Any) -> Any:
    """Return the rounds with sources and targets exchanged."""
    if rounds is None:
        return None
    return tuple((size, tuple((q, p) for p, q in pairs)) for size, pairs in rounds)


def move(part: Any, rounds: Any, index: jax.Array, values: list[jax.Array]) -> list[jax.Array]:
    """Send rows `index` of several arrays, block by block, in one exchange for each dtype."""
    if index.shape[0] == 0:
        return [jnp.zeros((0, *v.shape[1:]), v.dtype) for v in values]
    taken = [_primitive.take_rows(v, index, 0) for v in values]
    if len(taken) == 1:
        return [_send(part, rounds, taken[0])]
    out: dict[int, jax.Array] = {}
    for dtype in dict.fromkeys(v.dtype for v in taken):
        members = [k for k, v in enumerate(taken) if v.dtype == dtype]
        flat = [taken[k].reshape(index.shape[0], -1) for k in members]
        ends = list(itertools.accumulate(v.shape[1] for v in flat))
        together = _send(part, rounds, jnp.concatenate(flat, axis=1))
        for k, piece in zip(members, jnp.split(together, ends[:-1], axis=1), strict=True):
            out[k] = piece.reshape(taken[k].shape)
    return [out[k] for k in range(len(taken))]


def _send(part: Any, rounds: Any, blocks: jax.Array) -> jax.Array:
    if rounds is None:
        return jax.lax.all_to_all(blocks, part.axis_name, 0, 0, tiled=True)
    ends = list(itertools.accumulate(size for size, _ in rounds))
    pieces = jnp.split(blocks, ends[:-1])
    return jnp.concatenate(
        [
            jax.lax.ppermute(piece, part.axis_name, pairs)
            for piece, (_, pairs) in zip(pieces, rounds, strict=True)
        ]
    )


def reached(part: Any, *values: jax.Array) -> list[jax.Array]:
    """Return arrays of rows with the halo of `part` behind them; constants for derivatives."""
    values = tuple(jax.lax.stop_gradient(v) for v in values)
    rounds = part.routes and part.routes.near
    halos = move(part, rounds, part.near.send.ids, list(values))
    return [_behind(v, halo) for v, halo in zip(values, halos, strict=True)]


def _behind(own: jax.Array, received: jax.Array) -> jax.Array:
    return own if received.shape[0] == 0 else jnp.concatenate([own, received])


@_ad.custom_vjp(linear=((0,),))
def exchange(x: jax.Array, part: Any) -> jax.Array:
    """Return x with its halo behind it; the derivative sends partial sums back, bits not kept."""
    return reached(part, x)[0]


def _exchange_bwd(part: Any, ct: Any) -> Any:
    if ct.dtype == jax.dtypes.float0:
        return None, None
    send = part.near.send
    count = ct.shape[0] - send.num_edges
    if send.num_edges == 0:
        return ct, None
    back = _send(part, turned(part.routes and part.routes.near), ct[count:])
    return rows.index_add(ct[:count], send, back), None


exchange.defvjp(lambda x, part: (exchange(x, part), part), _exchange_bwd)


def brought(part: Any, *values: jax.Array) -> list[jax.Array]:
    """Bring arrays of the edges that enter a part's nodes to those that leave them; no derivative.

    All of them go in one all_to_all.
    """
    rounds = part.routes and part.routes.edges
    received = move(part, rounds, part.near.edge_send, list(values))
    return [
        _primitive.take_rows(_behind(v, more), part.far.edge_source, 0)
        for v, more in zip(values, received, strict=True)
    ]


@_ad.custom_vjp(linear=((0,),))
def to_far(y: jax.Array, part: Any) -> jax.Array:
    """Bring an array of the edges that enter a part's nodes to those that leave its nodes."""
    return brought(part, y)[0]


def _to_far_bwd(part: Any, ct: Any) -> Any:
    if ct.dtype == jax.dtypes.float0:
        return None, None
    return to_far(ct, part.T), None


to_far.defvjp(lambda y, part: (to_far(y, part), part), _to_far_bwd)


# --- Selection ------------------------------------------------------------------------------------


@_ad.custom_vjp(nondiff_argnums=(3,), linear=((0,),))
def gather(x: jax.Array, reach: Any, part: Any, lowering: str = "auto") -> jax.Array:
    """Take the row at the other end of each edge that enters a part's nodes."""
    reach = reached(part, x)[0] if reach is None else reach
    return rows.gather(reach, part.near.graph.senders, lowering=lowering)


def _gather_bwd(lowering: str, part: Any, ct: Any) -> Any:
    del lowering
    if ct.dtype == jax.dtypes.float0:
        return None, None, None
    return scatter_add(ct, part), None, None


gather.defvjp(
    lambda x, reach, part, lowering: (gather(x, reach, part, lowering), part), _gather_bwd
)


@_ad.custom_vjp(linear=((0,),))
def scatter_add(y: jax.Array, part: Any) -> jax.Array:
    """Sum an array of entering edges into the nodes at their other ends, by the owners of those."""
    return rows.scatter_add(to_far(y, part), part.far.graph.receivers)


def _scatter_add_bwd(part: Any, ct: Any) -> Any:
    if ct.dtype == jax.dtypes.float0:
        return None, None
    return gather(ct, None, part), None


scatter_add.defvjp(lambda y, part: (scatter_add(y, part), part), _scatter_add_bwd)

# --- Products -------------------------------------------------------------------------------------


@_ad.custom_vjp(linear=((0,), (1,)))
def spmm(x: jax.Array, weights: Any, reach: Any, part: Any) -> jax.Array:
    """Sum weights times rows of x over the edges that enter a part's nodes."""
    reach = reached(part, x)[0] if reach is None else reach
    return weighted_sum(reach, weights, part.near.graph)


def _spmm_fwd(x: jax.Array, weights: Any, reach: Any, part: Any) -> Any:
    reach = reached(part, x)[0] if reach is None else reach
    return spmm(x, weights, reach, part), (x, weights, reach, part)


def _spmm_bwd(saved: Any, ct: Any) -> Any:
    x, weights, reach, part = saved
    if ct.dtype == jax.dtypes.float0:
        return None, None, None, None
    far_weights = None if weights is None else to_far(weights, part)
    dx = spmm(ct, far_weights, None, part.T)
    if weights is None:
        return dx, None, None, None
    return dx, sddmm(x, ct, reach, part, x.ndim - weights.ndim, weights.dtype), None, None


spmm.defvjp(_spmm_fwd, _spmm_bwd)


@_ad.custom_vjp(nondiff_argnums=(4, 5), linear=((0,), (1,)))
def sddmm(
    x: jax.Array, y: jax.Array, reach: Any, part: Any, depth_axes: int, dtype: Any
) -> jax.Array:
    """Dot rows of x and y over their last axes at the ends of each edge that enters a part."""
    reach = reached(part, x)[0] if reach is None else reach
    return edge_dots(reach, y, part.near.graph, depth_axes, dtype)


def _sddmm_fwd(
    x: jax.Array, y: jax.Array, reach: Any, part: Any, depth_axes: int, dtype: Any
) -> Any:
    reach = reached(part, x)[0] if reach is None else reach
    return sddmm(x, y, reach, part, depth_axes, dtype), (x, y, reach, part)


def _sddmm_bwd(depth_axes: int, dtype: Any, saved: Any, ct: Any) -> Any:
    del depth_axes, dtype
    x, y, reach, part = saved
    if ct.dtype == jax.dtypes.float0:
        return None, None, None, None
    dx = spmm(y, to_far(ct, part), None, part.T)
    return dx, spmm(x, ct, reach, part), None, None


sddmm.defvjp(_sddmm_fwd, _sddmm_bwd)
