# SPDX-License-Identifier: Apache-2.0
"""partition: a graph in parts, one for each device of a mesh axis."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jax_index import _blocks, _check, _csr, _ids, _plan, _primitive
from jax_index._blocks import Lanes, Side
from jax_index._graph import Graph
from jax_index._plan import IndexPlan
from jax_index.ops.halo import Half, Routes
from jax_index.ops.part import GraphPart

KINDS = ("nodes", "senders", "receivers", "edges")
GRADS = ("exact", "halo")
EXCHANGES = ("all_to_all", "rounds")
# The name before jax 0.9 is the second one.
_reshard: Any = getattr(jax, "reshard", None) or jax.sharding.reshard


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("near", "far"),
    meta_fields=("num_parts", "num_senders", "num_receivers", "num_edges", "one_kind", "routes"),
)
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A graph in parts, as :func:`partition` returns it: a pytree of stacked arrays.

    Pass it to a function under ``jax.shard_map`` as an argument, with the spec
    ``PartitionSpec(axis)`` of a mesh axis with one device for each part, and take the device's part
    with :meth:`local`. Its static metadata is sizes alone, equal in all processes.

    Attributes:
        near: the edges by receiver, stacked.
        far: the edges by sender, stacked.
        num_parts: the number of parts.
        num_senders: the number of senders of the whole graph.
        num_receivers: the number of its receivers.
        num_edges: the number of its edges.
        one_kind: whether senders and receivers are the same nodes.
        routes: None, or the rounds in which parts send.
    """

    near: Half
    far: Half
    num_parts: int
    num_senders: int
    num_receivers: int
    num_edges: int
    one_kind: bool
    routes: Routes | None

    def __repr__(self) -> str:
        sizes = (self.num_senders, self.num_receivers, self.num_edges)
        names = ("num_senders", "num_receivers", "num_edges")
        rest = ", ".join(f"{n}={v}" for n, v in zip(names, sizes, strict=True))
        return f"Partition(num_parts={self.num_parts}, {rest})"

    @property
    def node_parts(self) -> Any:
        """The owner of each node, for another graph on the same nodes; int32 ``[n]``.

        A pair, (owners of senders, owners of receivers), if they are nodes of two kinds.
        """
        owners = self._known("node_parts")[0]
        return owners[1] if self.one_kind else owners

    @property
    def report(self) -> dict[str, Any]:
        """What each part holds and what one exchange sends: a dict of numbers, ready for JSON.

        ``nodes`` (receivers), ``edges``, ``halo`` (rows that a part receives in the forward
        exchange), each with total, max, mean and max_over_mean; ``cut_edges``; ``rows``: what all
        parts together send: ``forward``; backward ``exact_fused`` (cotangents of receivers),
        ``exact_unfused`` (cut edges), ``halo`` (partial sums); ``padded``: the same with the
        padding of blocks, own ones not counted; ``rounds``: the collectives of one exchange;
        ``neighbours``: the largest number of parts that one part hears from.
        """
        return self._known("report")[1]

    def _known(self, name: str) -> Any:
        known = self.__dict__.get("_host")
        if known is None:
            fix = "Read it before the object passes through a transformation or a tree map."
            given = "a Partition rebuilt from its arrays"
            _check.fail(ValueError, f"Partition.{name}", "self", "as partition made it", given, fix)
        return known

    def local(self, axis_name: str, *, grad: str = "exact") -> GraphPart:
        """Return this device's part, inside of a shard_map over the mesh axis of parts.

        Args:
            axis_name: the mesh axis along which this object is sharded.
            grad: how ops send derivatives. ``"exact"``: so that they have the bits of the unsharded
                op. ``"halo"``: as partial sums of each part, added by the owner; never more rows
                than the forward exchange, but bits depend on the partition.

        Returns:
            The :class:`GraphPart`.

        Raises:
            TypeError: axis_name is no string.
            ValueError: outside of shard_map, an axis of another size, arrays that are not sharded
                along it, or an unknown grad.
        """
        op = "Partition.local"
        if not isinstance(axis_name, str):
            fix = "Pass the name of the mesh axis of parts."
            _check.fail(TypeError, op, "axis_name", "a string", _check.describe(axis_name), fix)
        if not isinstance(grad, str) or grad not in GRADS:
            fix = "'exact' keeps the bits of the unsharded gradient."
            _check.fail(ValueError, op, "grad", "'exact' or 'halo'", repr(grad), fix)
        try:
            size = jax.lax.axis_size(axis_name)
        except NameError:
            fix = "Call it inside of a function under jax.shard_map."
            expected = "the name of a mesh axis"
            _check.fail(ValueError, op, "axis_name", expected, repr(axis_name), fix)
        if size != self.num_parts:
            fix = "Make as many parts as the mesh axis has devices."
            expected = f"an axis with {self.num_parts} devices, one for each part"
            _check.fail(ValueError, op, "axis_name", expected, f"one with {size}", fix)
        shape = jnp.shape(self.near.row_ids)
        if len(shape) != 2 or shape[0] != 1:
            fix = f"Pass it through in_specs=PartitionSpec({axis_name!r})."
            expected = "one part, arrays with a first axis of 1"
            _check.fail(ValueError, op, "self", expected, f"arrays of shape {shape}", fix)
        near, far = jax.tree.map(lambda leaf: leaf[0], (self.near, self.far))
        return GraphPart(near, far, axis_name, grad, self.routes)

    def split(self, x: Any, kind: str = "nodes") -> Any:
        """Lay out an array of the whole graph by parts: ``[n, ...]`` to ``[num_parts, size, ...]``.

        Args:
            x: an array of nodes or edges of the whole graph. A NumPy array is cut on the host and
                each part placed where the partition's arrays are, in all processes; another one is
                gathered on the devices.
            kind: ``"nodes"``, ``"senders"``, ``"receivers"`` or ``"edges"``.

        Returns:
            The array by parts, 0 in padding.

        Raises:
            TypeError: x is no array.
            ValueError: x has another number of rows, or an unknown kind.
        """
        op = "Partition.split"
        ids, count = self._layout(op, kind)
        x = x if isinstance(x, np.ndarray) else _check.array(op, "x", x)
        if x.ndim == 0:
            fix = "Pass an array with an axis of rows."
            _check.fail(ValueError, op, "x", "an array of at least one axis", "a scalar", fix)
        _check.rows(op, "x", x, 0, count, f"one for each of the {kind}", _check.GRAPH_FIX)
        known = self.__dict__.get("_host")
        if isinstance(x, np.ndarray) and known is not None:
            return _host_split(x, known[2][kind], ids)
        return _split_jit(jnp.asarray(x), ids)

    def join(self, y: Any, kind: str = "nodes") -> jax.Array:
        """Bring an array by parts back to the order of the whole graph; undoes :meth:`split`.

        Args:
            y: ``[num_parts, size, ...]``.
            kind: see :meth:`split`.

        Returns:
            ``[n, ...]`` of y's dtype; 0 for edges that the graph drops.

        Raises:
            TypeError: y is no array.
            ValueError: y has other leading axes, or an unknown kind.
        """
        op = "Partition.join"
        ids, count = self._layout(op, kind)
        y = _check.array(op, "y", y)
        if y.shape[:2] != ids.shape:
            fix = "Pass what a function under shard_map returned with out_specs of the axis."
            expected = f"an array of shape [{ids.shape[0]}, {ids.shape[1]}, ...]"
            _check.fail(ValueError, op, "y", expected, f"shape {y.shape}", fix)
        return _join_jit(y, ids, count)

    def _layout(self, op: str, kind: Any) -> tuple[Any, int]:
        if not isinstance(kind, str) or kind not in KINDS:
            fix = "Say what the rows of the array stand for."
            _check.fail(ValueError, op, "kind", f"one of {KINDS}", repr(kind), fix)
        if kind == "nodes" and not self.one_kind:
            fix = "Senders and receivers are nodes of two kinds here."
            _check.fail(ValueError, op, "kind", "'senders' or 'receivers'", "'nodes'", fix)
        if kind == "edges":
            return self.near.edge_ids, self.num_edges
        if kind == "senders":
            return self.far.row_ids, self.num_senders
        return self.near.row_ids, self.num_receivers


@jax.jit
def _split_jit(x: jax.Array, ids: jax.Array) -> jax.Array:
    one = lambda x, ids: _primitive.take_rows(x, ids[0], 0)[None]  # noqa: E731
    mesh, axis = _explicit_axis(ids)
    if axis is None:
        return jax.vmap(lambda ids: one(x, ids[None])[0])(ids)
    x = _reshard(x, NamedSharding(mesh, PartitionSpec()))
    specs = PartitionSpec(), PartitionSpec(axis)
    return jax.shard_map(one, mesh=mesh, in_specs=specs, out_specs=specs[1])(x, ids)


@partial(jax.jit, static_argnums=(2,))
def _join_jit(y: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    mesh, axis = _explicit_axis(ids)
    if axis is not None:
        whole = NamedSharding(mesh, PartitionSpec())
        y, ids = (_reshard(v, whole) for v in (y, ids))
    place = jnp.where(ids < 0, count, ids).reshape(-1)
    out = jnp.zeros((count, *y.shape[2:]), y.dtype)
    return out.at[place].set(y.reshape(-1, *y.shape[2:]), mode="drop")


def _explicit_axis(ids: Any) -> tuple[Any, Any]:
    """Return the mesh and the axis of parts where shardings are part of types, else None."""
    sharding = jax.typeof(ids).sharding
    axis = sharding.spec[0] if len(sharding.spec) else None
    return sharding.mesh, axis


def _host_split(x: np.ndarray, host: np.ndarray, like: Any) -> jax.Array:
    shape = (*host.shape, *x.shape[1:])

    def block(index: Any) -> np.ndarray:
        ids = host[index[:2]]
        if len(x) == 0:
            return np.zeros((*ids.shape, *x.shape[1:]), x.dtype)
        inside = (ids >= 0).reshape(*ids.shape, *[1] * (x.ndim - 1))
        return np.where(inside, x[np.maximum(ids, 0)], np.zeros((), x.dtype))

    sharding = getattr(like, "sharding", None)
    if isinstance(sharding, NamedSharding):
        return jax.make_array_from_callback(shape, sharding, block)
    return jnp.asarray(block((slice(None), slice(None))))


# --- Building -------------------------------------------------------------------------------------


def partition(
    graph: Graph,
    num_parts: int,
    *,
    node_parts: Any = None,
    exchange: str = "all_to_all",
    sharding: NamedSharding | None = None,
) -> Partition:
    """Cut a graph into parts, each of which owns nodes and their edges: for graphs beyond a device.

    A part holds the edges that enter its nodes and those that leave them, in the caller's order;
    rows of other parts (the halo) come by one ``all_to_all`` inside of ``jax.shard_map``. Plans are
    built by NumPy on the host, in every process alike.

    Args:
        graph: a concrete :class:`Graph`; senders and receivers are the same nodes if there are as
            many of each and node_parts is no pair.
        num_parts: the number of parts, that of the devices of a mesh axis.
        node_parts: the owner of each node, integers ``[n]`` from 0 to num_parts - 1, or a pair of
            such arrays, for senders and receivers; ``"contiguous"``: blocks of nodes in their own
            order; None or ``"bisect"``: sets halved again and again along levels of a breadth-first
            search. Both balance the number of nodes and entering edges.
        exchange: ``"all_to_all"``: one collective, whose blocks are as large for each pair of parts
            as for the largest; ``"rounds"``: a few permutations, in each of which a part sends to
            one part at most: far less padding among many parts, of which each has a few neighbours.
            Their schedule is static. The bits are the same.
        sharding: a NamedSharding that puts one part on each device of a mesh axis, of one process
            or of several; or None: all arrays on the default device.

    Returns:
        The :class:`Partition`: stacked arrays, padded to one size for all parts.

    Raises:
        TypeError: graph is no concrete Graph, a wrong type of argument.
        ValueError: sizes that do not belong together, an owner out of range, or a sharding that
            does not cut the first axis into num_parts.

    Gradient:
        That of the ops of :class:`GraphPart`, of any order of reverse mode.

    Determinism:
        The ops on parts and their gradients have the bits of the unsharded ones, for any number of
        parts, but for ``grad="halo"`` and for what JAX adds over devices (parameters).

    Example:
        >>> import jax, jax.numpy as jnp, jax_index
        >>> from jax.sharding import NamedSharding, PartitionSpec as P
        >>> mesh = jax.make_mesh((1,), ("parts",))
        >>> graph = jax_index.Graph([0, 1, 2], [1, 2, 0], num_senders=3, num_receivers=3)
        >>> parts = jax_index.partition(graph, 1, sharding=NamedSharding(mesh, P("parts")))
        >>> def step(parts, x):
        ...     return parts.local("parts").spmm(x[0])[None]
        >>> step = jax.shard_map(step, mesh=mesh, in_specs=P("parts"), out_specs=P("parts"))
        >>> x = parts.split(jnp.array([1.0, 2.0, 3.0]))
        >>> parts.join(jax.jit(step)(parts, x)).tolist()
        [3.0, 1.0, 2.0]
    """
    op = "partition"
    if not isinstance(graph, Graph):
        fix = "Make one with jax_index.Graph(senders, receivers, num_senders=, num_receivers=)."
        _check.fail(TypeError, op, "graph", "a Graph", _check.describe(graph), fix)
    num_parts = _check.size(op, "num_parts", num_parts)
    if num_parts == 0:
        _check.fail(ValueError, op, "num_parts", "1 or more", "0", "One part is the whole graph.")
    if exchange not in EXCHANGES:
        fix = "Rounds pay where parts are many."
        _check.fail(ValueError, op, "exchange", "'all_to_all' or 'rounds'", repr(exchange), fix)
    _check_sharding(op, sharding, num_parts)
    ends = [
        _plan.canonical(_plan.concrete_ids(op, plan, "Partition", name), plan.num_rows)
        for name, plan in (("graph.senders", graph.senders), ("graph.receivers", graph.receivers))
    ]
    owners, one_kind = _owners(op, graph, ends, num_parts, node_parts)
    at_sender, at_receiver = (_blocks.place(owner, num_parts) for owner in owners)
    in_rounds = exchange == "rounds"
    near, far, crossing = _blocks.sides(ends[0], ends[1], at_sender, at_receiver, in_rounds)
    halves = jax.tree.map(_placed(sharding), (_half(near), _half(far)))
    made = Partition(
        near=halves[0],
        far=halves[1],
        num_parts=num_parts,
        num_senders=graph.num_senders,
        num_receivers=graph.num_receivers,
        num_edges=graph.num_edges,
        one_kind=one_kind,
        routes=_routes(near.halo.rounds, far.halo.rounds, crossing.rounds),
    )
    ids = {"edges": near.edge_ids, "senders": far.row_ids, "receivers": near.row_ids}
    found = _report(near, far, crossing)
    owned = tuple(owner.astype(np.int32) for owner in owners)
    made.__dict__["_host"] = owned, found, {**ids, "nodes": near.row_ids}
    return made


def _check_sharding(op: str, sharding: Any, num_parts: int) -> None:
    if sharding is None:
        return
    fix = "Pass NamedSharding(mesh, PartitionSpec(axis)) of the mesh axis of parts."
    if not isinstance(sharding, NamedSharding):
        given = _check.describe(sharding)
        _check.fail(TypeError, op, "sharding", "None or a NamedSharding", given, fix)
    spec = sharding.spec
    axis = spec[0] if len(spec) == 1 else None
    if not isinstance(axis, str) or sharding.mesh.shape[axis] != num_parts:
        expected = f"of one axis with {num_parts} devices, one for each part"
        _check.fail(ValueError, op, "sharding", expected, str(sharding), fix)


def _owners(
    op: str, graph: Graph, ends: list[np.ndarray], num_parts: int, given: Any
) -> tuple[tuple[np.ndarray, np.ndarray], bool]:
    """Return the owners of senders and receivers, and whether these are the same nodes."""
    counts = graph.num_senders, graph.num_receivers
    if given is None or isinstance(given, str):
        if given not in (None, "bisect", "contiguous"):
            fix = "Or pass the owner of each node."
            expected = "None, 'bisect' or 'contiguous'"
            _check.fail(ValueError, op, "node_parts", expected, repr(given), fix)
        there = (ends[0] >= 0) & (ends[1] >= 0)
        kept = np.stack([end[there] for end in ends]).astype(np.int64)
        entering = np.bincount(kept[1], minlength=counts[1]) + 1.0
        one_kind = counts[0] == counts[1]
        if one_kind and given == "contiguous":
            owner = _blocks.contiguous(entering, num_parts)
        elif one_kind:
            owner = _blocks.bisected(kept, entering, num_parts)
        else:
            weights = np.concatenate([np.ones(counts[0]), entering])
            if given == "contiguous":
                parts = [_blocks.contiguous(w, num_parts) for w in np.split(weights, counts[:1])]
                return (parts[0], parts[1]), False
            kept[1] += counts[0]
            both = _blocks.bisected(kept, weights, num_parts)
            return (both[: counts[0]], both[counts[0] :]), False
        return (owner, owner), True
    if isinstance(given, tuple | list) and len(given) == 2 and np.ndim(given[0]) == 1:
        pair = [
            _owner_ids(op, f"node_parts[{k}]", ids, counts[k], num_parts)
            for k, ids in enumerate(given)
        ]
        return (pair[0], pair[1]), False
    if counts[0] != counts[1]:
        fix = "Pass (owners of senders, owners of receivers)."
        expected = "a pair where senders and receivers differ"
        _check.fail(ValueError, op, "node_parts", expected, _check.describe(given), fix)
    owner = _owner_ids(op, "node_parts", given, counts[0], num_parts)
    return (owner, owner), True


def _owner_ids(op: str, argument: str, given: Any, count: int, num_parts: int) -> np.ndarray:
    if isinstance(given, jax.core.Tracer):
        fix = "Partition the graph outside of jit."
        _check.fail(TypeError, op, argument, "concrete", _check.describe(given), fix)
    owner = _ids.host_ids(op, given, argument).astype(np.int64)
    if owner.size != count:
        fix = "Say the owner of each node."
        _check.fail(ValueError, op, argument, f"{count} integers", f"{owner.size}", fix)
    outside = np.flatnonzero((owner < 0) | (owner >= num_parts))
    if outside.size:
        k = int(outside[0])
        fix = "Owners are numbers of parts."
        expected = f"in [0, {num_parts})"
        _check.fail(ValueError, op, argument, expected, f"{argument}[{k}] = {owner[k]}", fix)
    return owner


def _half(side: Side) -> Any:
    """Return the Half of one side, its leaves stacked NumPy arrays."""
    receivers = _stacked_plan(side.rows, side.num_rows)
    senders = _stacked_plan(side.others, side.num_others)
    sender_of = _through(side.others, receivers.perm)
    receiver_of = _through(side.rows, senders.perm)
    graph = Graph._of(senders, receivers, sender_of, receiver_of)
    send = _stacked_plan(side.send, side.num_own)
    rest: Any = (side.row_ids, side.edge_ids, send, side.edge_send, side.edge_source)
    return Half(graph, *rest)


def _through(values: np.ndarray, perm: Any) -> np.ndarray:
    return np.take_along_axis(values, np.asarray(perm), axis=1)


def _stacked_plan(ids: np.ndarray, num_rows: int) -> IndexPlan:
    """Return the plans of all parts as one; a flag is set if it holds for each of them."""
    found = [_csr.from_ids(np.ascontiguousarray(row), num_rows, True) for row in ids]
    arrays: Any = [np.stack([each[k] for each in found]) for k in range(4)]
    stacked, indptr, perm, tasks = arrays
    return IndexPlan(
        ids=stacked,
        indptr=indptr,
        perm=perm,
        tasks=tasks,
        num_rows=num_rows,
        num_edges=ids.shape[1],
        identity=all(each.identity for each in found),
        no_long_row=all(each.no_long_row for each in found),
    )


def _placed(sharding: NamedSharding | None) -> Any:
    if sharding is None:
        return lambda leaf: _csr.concrete([leaf])[0]
    return lambda leaf: jax.make_array_from_callback(leaf.shape, sharding, lambda at: leaf[at])


def _routes(*rounds: Any) -> Routes | None:
    return None if rounds[0] is None else Routes(*rounds)


def _report(near: Side, far: Side, crossing: Lanes) -> dict[str, Any]:
    forward, backward = int(near.halo.pairs.sum()), int(far.halo.pairs.sum())
    cut = int(crossing.pairs.sum())
    return {
        "num_parts": len(crossing.pairs),
        "nodes": _blocks.balance((near.row_ids >= 0).sum(axis=1)),
        "edges": _blocks.balance((near.edge_ids >= 0).sum(axis=1)),
        "halo": _blocks.balance(near.halo.pairs.sum(axis=0)),
        "cut_edges": cut,
        "rows": {
            "forward": forward,
            "exact_fused": backward,
            "exact_unfused": cut,
            "halo": forward,
        },
        "padded": {
            "forward": near.halo.padded,
            "exact_fused": far.halo.padded,
            "exact_unfused": crossing.padded,
            "halo": near.halo.padded,
        },
        "rounds": 1 if near.halo.rounds is None else len(near.halo.rounds),
        "neighbours": int((near.halo.pairs > 0).sum(axis=0).max()),
    }
