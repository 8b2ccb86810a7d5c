# SPDX-License-Identifier: Apache-2.0
"""Plans and graphs as static metadata of a program: its text holds a digest and no array."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from jax_index import _check, _graph, _plan, _store
from jax_index._graph import Graph
from jax_index._plan import IndexPlan

Indices = TypeVar("Indices", IndexPlan, Graph)


class PlanKey(NamedTuple):
    """All that JAX's caches hold of a static plan."""

    digest: str
    num_rows: int
    num_edges: int
    identity: bool
    no_long_row: bool

    @property
    def arrays(self) -> _store.Key:
        """The key of its arrays."""
        m = self.num_edges
        shapes = ((m,), (self.num_rows + 1,), (m,), (_plan.num_tasks(m), 2))
        return _store.Key(self.digest, shapes)


class StaticPlan(IndexPlan):
    """An :class:`IndexPlan` as static metadata of programs, which every op takes in its place.

    A pytree without leaves: it passes through jit, checkpoint, scan, cond, custom derivatives,
    ``grad`` over a module that holds it, and optimisers as it is. A program that uses it carries a
    digest of the content; its text and the time to compile it do not grow with the number of edges,
    and all programs of a process share one copy of the arrays on each device. A function is traced
    once for each content. Get one from :attr:`IndexPlan.static`; an IndexPlan that a jitted
    function closes over and hands to an op becomes one by itself.

    The arrays live in a record, see :func:`live_plans`. Its owners are the static plan, the plan
    that it was made from, and the programs that use it, traced or compiled; what else JAX holds is
    the digest. A jitted function keeps the programs of all static plans that it was given as long
    as it lives, and JAX keeps those of eager ``scan``, ``cond`` and the like, as well as a plan
    given through ``static_argnames``, until ``jax.clear_caches()``. A function that ``jax.vjp``
    returned keeps the plans that it names. Memory comes back within a minute.

    A program that was saved, or compiled in another process, needs the plan in this one: load it
    with ``IndexPlan.load(path).static`` before, and keep it. Its first run says so otherwise.

    Attributes:
        digest: the hexadecimal digest of num_rows and ids.
        num_rows: n.
        num_edges: m.
        identity: as of the plan.
        no_long_row: as of the plan.
        ids, indptr, perm, tasks: as of the plan; in a traced function they are values that the
            program reads from the shared copy.

    Example:
        >>> import jax, jax.numpy as jnp, jax_index
        >>> plan = jax_index.make_plan([1, 0, 1], num_rows=2).static
        >>> jax.jit(jax_index.scatter_add)(jnp.array([1.0, 2.0, 4.0]), plan).tolist()
        [2.0, 5.0]
        >>> jax.tree.leaves(plan)
        []
    """

    is_static = True

    def __init__(self, key: PlanKey, owner: _store.Owner | None):
        self.__dict__.update(key._asdict())
        del self.__dict__["digest"]
        self.__dict__["_digest"] = key.digest
        self.__dict__["_owner"] = owner

    @property
    def key(self) -> PlanKey:
        """The static part, which JAX compares."""
        flags = self.identity, self.no_long_row
        return PlanKey(self.digest, self.num_rows, self.num_edges, *flags)

    @property
    def arrays(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The arrays in the order in which kernels take them."""
        if _store.staging():
            return _store.arrays_of(self.key.arrays)  # type: ignore[return-value]
        return self._record.arrays  # type: ignore[return-value]

    ids = property(lambda self: self.arrays[0])
    indptr = property(lambda self: self.arrays[1])
    perm = property(lambda self: self.arrays[2])
    tasks = property(lambda self: self.arrays[3])

    @property
    def _record(self) -> _store.Record:
        return _record(self, "IndexPlan")

    @property
    def plan(self) -> IndexPlan:
        """The plan with its arrays."""
        ids, indptr, perm, tasks = self._record.arrays
        sizes = self.num_rows, self.num_edges
        plan = IndexPlan(ids, indptr, perm, tasks, *sizes, self.identity, self.no_long_row)
        plan.__dict__.update(_built=True, _digest=self.digest)
        return plan

    @property
    def static(self) -> StaticPlan:
        """This plan."""
        return self

    @property
    def generic(self) -> StaticPlan:
        """The same plan with both flags cleared."""
        key = self.key._replace(identity=False, no_long_row=False)
        return StaticPlan(key, self.__dict__["_owner"])

    def pad_to(self, num_edges: int, num_rows: int) -> StaticPlan:
        """Return the static plan of :meth:`IndexPlan.pad_to`."""
        return self.plan.pad_to(num_edges, num_rows).static

    def save(self, path: Any) -> None:
        """Write the plan to a file, see :meth:`IndexPlan.save`."""
        self.plan.save(path)

    def __repr__(self) -> str:
        return f"StaticPlan(digest={self.digest!r}, {super().__repr__().partition('(')[2]}"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _static_of, (self.plan,)

    def __deepcopy__(self, memo: dict[int, Any]) -> StaticPlan:
        return self


class StaticGraph(Graph):
    """A :class:`Graph` as static metadata of programs, which every op takes in its place.

    Two static plans, and what a graph adds to them under a digest of its own; a pytree without
    leaves that behaves as :class:`StaticPlan` does. Get one from :attr:`Graph.static`; a Graph that
    a jitted function closes over and hands to an op becomes one by itself.

    Attributes:
        senders: the static plan of the senders.
        receivers: the static plan of the receivers.
        sender_of, receiver_of: as of the graph.

    Example:
        >>> import jax, jax.numpy as jnp, jax_index
        >>> graph = jax_index.Graph([0, 1, 2], [1, 0, 1], num_senders=3, num_receivers=2).static
        >>> jax.jit(jax_index.spmm)(graph, jnp.array([1.0, 2.0, 4.0])).tolist()
        [2.0, 5.0]
    """

    is_static = True

    def __init__(
        self,
        senders: StaticPlan,
        receivers: StaticPlan,
        digest: str,
        turned: bool,
        owner: _store.Owner | None,
    ):
        self.__dict__.update(senders=senders, receivers=receivers)
        self.__dict__.update(_links=digest, _turned=turned, _owner=owner)

    @property
    def key(self) -> tuple[PlanKey, PlanKey, str, bool]:
        """The static part, which JAX compares."""
        links, turned = self.__dict__["_links"], self.__dict__["_turned"]
        return self.senders.key, self.receivers.key, links, turned  # type: ignore[attr-defined]

    @property
    def _ends(self) -> tuple[jax.Array, ...]:
        """sender_of and receiver_of; the record holds those of the graph before it was turned."""
        if _store.staging():
            shape = (self.num_edges,)
            ends = _store.arrays_of(_store.Key(self.__dict__["_links"], (shape, shape)))
        else:
            ends = _record(self, "Graph").arrays
        return ends[::-1] if self.__dict__["_turned"] else ends

    sender_of = property(lambda self: self._ends[0])
    receiver_of = property(lambda self: self._ends[1])

    @property
    def digest(self) -> str:
        """A hexadecimal digest of the content, as of :class:`Graph`."""
        return _graph.joint_digest(self.senders.digest, self.receivers.digest)

    @property
    def graph(self) -> Graph:
        """The graph with its arrays."""
        plans = self.senders.plan, self.receivers.plan  # type: ignore[attr-defined]
        ends = _record(self, "Graph").arrays
        graph = Graph._of(*plans, *(ends[::-1] if self.__dict__["_turned"] else ends))
        graph.__dict__["_built"] = True
        return graph

    @property
    def static(self) -> StaticGraph:
        """This graph."""
        return self

    @property
    def T(self) -> StaticGraph:  # noqa: N802 (the name that matrices have)
        """The graph with all edges turned round."""
        senders, receivers, links, turned = self.key
        return _graph_of((receivers, senders, links, not turned))

    @property
    def generic(self) -> StaticGraph:
        """The same graph with the flags of both plans cleared."""
        cleared = [k._replace(identity=False, no_long_row=False) for k in self.key[:2]]
        return _graph_of((*cleared, *self.key[2:]))  # type: ignore[arg-type]

    def sort_edges(self) -> tuple[StaticGraph, jax.Array]:
        """Return the static graph and the permutation of :meth:`Graph.sort_edges`."""
        graph, perm = self.graph.sort_edges()
        return graph.static, perm

    def pad_to(self, num_edges: int, num_senders: int, num_receivers: int) -> StaticGraph:
        """Return the static graph of :meth:`Graph.pad_to`."""
        return self.graph.pad_to(num_edges, num_senders, num_receivers).static

    def save(self, path: Any) -> None:
        """Write the graph to a file, see :meth:`Graph.save`."""
        self.graph.save(path)

    def __repr__(self) -> str:
        return f"StaticGraph(senders={self.senders!r}, receivers={self.receivers!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _static_of, (self.graph,)

    def __deepcopy__(self, memo: dict[int, Any]) -> StaticGraph:
        return self


def _record(static: Any, kind: str) -> _store.Record:
    """Return the record of a static plan or graph, or say that this process has none."""
    owner = static.__dict__["_owner"]
    if owner is None:
        fix = f"Load it first and keep it: jax_index.{kind}.load(path).static."
        expected = "known to this process"
        _check.fail(ValueError, type(static).__name__, "self", expected, repr(static), fix)
    return owner.record


def _plan_of(key: PlanKey) -> StaticPlan:
    return StaticPlan(key, _store.find(key.digest, "StaticPlan"))


def _graph_of(key: tuple[PlanKey, PlanKey, str, bool]) -> StaticGraph:
    senders, receivers, links, turned = key
    owner = _store.find(links, "StaticGraph")
    return StaticGraph(_plan_of(senders), _plan_of(receivers), links, turned, owner)


def _static_of(indices: Any) -> Any:
    return indices.static


jax.tree_util.register_pytree_node(
    StaticPlan, lambda plan: ((), plan.key), lambda key, _: _plan_of(key)
)
jax.tree_util.register_pytree_node(
    StaticGraph, lambda graph: ((), graph.key), lambda key, _: _graph_of(key)
)


# --- From plans and graphs ------------------------------------------------------------------------


def static_plan(plan: IndexPlan, op: str = "IndexPlan.static", argument: str = "") -> StaticPlan:
    """Return the static plan of a concrete one; errors name `op`."""
    if plan.__dict__.get("_owner") is None:
        _plan.concrete_ids(op, plan, "Take .static", argument)
        _check_built(plan, op, argument or "self")
    owner = _owner_of(plan, "IndexPlan", plan.digest, repr(plan), plan.arrays)
    flags = plan.identity, plan.no_long_row
    key = PlanKey(plan.digest, plan.num_rows, plan.num_edges, *flags)
    return StaticPlan(key, _store.Owner(owner.record, "StaticPlan"))


def static_graph(graph: Graph) -> StaticGraph:
    """Return the static graph of a concrete one."""
    op = "Graph.static"
    senders = static_plan(graph.senders, op, "senders")
    receivers = static_plan(graph.receivers, op, "receivers")
    _check_built(graph, op, "self")
    links = f"{graph.digest}-links"
    ends = graph.sender_of, graph.receiver_of
    owner = _owner_of(graph, "Graph", links, f"links of {graph!r}", ends)
    return StaticGraph(senders, receivers, links, False, _store.Owner(owner.record, "StaticGraph"))


def _owner_of(indices: Any, kind: str, digest: str, name: str, arrays: Any) -> _store.Owner:
    """Return what a plan or graph keeps its record by, made the first time."""
    owner = indices.__dict__.get("_owner")
    if owner is None:
        owner = _store.own(digest, kind, lambda: (name, arrays))
        indices.__dict__["_owner"] = owner
    return owner


def _check_built(indices: Any, op: str, argument: str) -> None:
    """Check that what came out of a tree map, say, still is what its ids give."""
    if not _is_built(indices):
        fix = "Make it anew from its ids."
        given = "arrays that do not belong to its ids"
        _check.fail(ValueError, op, argument, "as it was made", given, fix)


def _is_built(indices: Any) -> bool:
    """Whether the arrays are what the ids give; asked once for each object."""
    known = indices.__dict__.get("_built")
    if known is None:
        known = _plan_fits(indices) if isinstance(indices, IndexPlan) else _links_fit(indices)
        indices.__dict__["_built"] = known
    return bool(known)


def _plan_fits(plan: IndexPlan) -> bool:
    ids = _plan.concrete_ids("IndexPlan", plan, "Check")
    anew = _plan.build("IndexPlan", ids, plan.num_rows, "drop")
    pairs = zip(plan.arrays, anew.arrays, strict=True)
    fits = all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)
    return fits and plan.identity <= anew.identity and plan.no_long_row <= anew.no_long_row


def _links_fit(graph: Graph) -> bool:
    pairs = (
        (graph.sender_of, graph.senders, graph.receivers),
        (graph.receiver_of, graph.receivers, graph.senders),
    )
    return all(
        np.array_equal(np.asarray(link), np.asarray(one.ids)[np.asarray(other.perm)])
        for link, one, other in pairs
    )


def settle(indices: Indices) -> Indices:
    """Return what an op shall compute with: arrays when it runs now, a digest in a program.

    Concrete plans and graphs that a traced function closes over, or makes, become static ones;
    traced ones are arguments of the program and stay. What runs now gets arrays, so that nothing is
    compiled for each plan.
    """
    if isinstance(indices, StaticPlan | StaticGraph):
        if _store.staging():
            return indices
        return indices.plan if isinstance(indices, StaticPlan) else indices.graph
    if not _store.staging():
        return indices
    leaves = jax.tree.leaves(indices)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return indices
    return indices.static if _can_be_static(indices, leaves) else indices


def _can_be_static(indices: Any, leaves: list[Any]) -> bool:
    if not all(isinstance(leaf, jax.Array) and leaf.is_fully_addressable for leaf in leaves):
        return False
    if isinstance(indices, IndexPlan):
        return _plan.is_whole(indices) and _is_built(indices)
    ends = indices.senders, indices.receivers
    return all(_can_be_static(end, []) for end in ends) and _is_built(indices)
