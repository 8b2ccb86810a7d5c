# SPDX-License-Identifier: Apache-2.0
"""Graph: the plans of both ends of the edges, and what an op reads of one along the other."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _csr, _file, _matrices, _plan
from jax_index._ends import linked, read_ends
from jax_index._plan import IndexPlan

if TYPE_CHECKING:
    from jax_index._static import StaticGraph

FIELDS = ("senders", "receivers", "sender_of", "receiver_of")


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class Graph:
    """m edges, each from a sender to a receiver, ready for every op on graphs.

    Messages flow along the edges: with weights w, row r of a product is the sum of
    ``w[e] * x[senders[e]]`` over the edges e with ``receivers[e] = r``. Senders and receivers may
    be nodes of one kind or of two (a bipartite graph). A graph holds the :class:`IndexPlan` of each
    end and, of each edge in the row order of one end, the other end.

    A graph is a pytree like a plan: pass it to jitted functions **as an argument**, and clear the
    flags with :attr:`generic` where graphs of equal sizes are to share a trace or to be stacked.
    It is hashed and compared by content, copied, pickled and saved.

    Args:
        senders: an :class:`IndexPlan`, or ids ``[m]`` of any kind that :func:`make_plan` takes;
            traced ids are sorted on the device.
        receivers: the same for the other end; of equal length.
        num_senders: the number of nodes that send; needed with ids, None or equal with a plan.
        num_receivers: the number of nodes that receive, likewise.
        mode: with two plans None. With ids ``"raise"`` or ``"drop"`` as in :func:`make_plan`; None
            means "raise" for concrete ids and "drop" for traced ones.

    An edge whose sender or receiver is dropped belongs to no row at either end: both plans hold -1
    there. A plan that needs no such change is kept as it is; of traced plans and ids, whose values
    are unknown, both ends are sorted anew.

    Attributes:
        senders: the plan of the senders, ``num_rows == num_senders``.
        receivers: the plan of the receivers, ``num_rows == num_receivers``.
        sender_of: int32 ``[m]``, ``senders.ids[receivers.perm]``: the sender of the k-th edge in
            the row order of the receivers; -1 at the end, for dropped edges.
        receiver_of: int32 ``[m]``, ``receivers.ids[senders.perm]``: the mirror.

    Raises:
        IndexError: an id is out of range in mode "raise"; the text names the first one.
        TypeError: ids are not integers, a size is no whole number, or a plan is a stack of plans.
        ValueError: unequal lengths, a size that is missing or not the plan's, or a mode that does
            not belong there.

    Determinism:
        Integers alone: the same graph from equal ids, traced or not.

    Example:
        >>> import jax_index
        >>> graph = jax_index.Graph([0, 1, 2, 0], [1, 0, 1, 1], num_senders=3, num_receivers=2)
        >>> graph.receivers.perm.tolist(), graph.sender_of.tolist()
        ([1, 0, 2, 3], [1, 0, 2, 0])
        >>> graph.T.num_senders
        2
    """

    senders: IndexPlan
    receivers: IndexPlan
    # Not arguments, so that dataclasses.replace(graph, senders=...) makes them anew.
    sender_of: jax.Array = dataclasses.field(init=False)
    receiver_of: jax.Array = dataclasses.field(init=False)
    is_static: ClassVar[bool] = False

    def __init__(
        self,
        senders: Any,
        receivers: Any,
        *,
        num_senders: int | None = None,
        num_receivers: int | None = None,
        mode: str | None = None,
    ):
        ends = read_ends("Graph", senders, receivers, num_senders, num_receivers, mode)
        self.__dict__.update(zip(FIELDS, linked(*ends), strict=True))

    @classmethod
    def _of(cls, *fields: Any) -> Graph:
        """Make a graph of its four fields, whatever they are."""
        self = object.__new__(cls)
        self.__dict__.update(zip(FIELDS, fields, strict=True))
        return self

    @classmethod
    def from_scipy(cls, A: Any) -> tuple[Graph, jax.Array]:
        """Return the graph and the weights of a SciPy matrix: ``spmm(graph, x, weights) = A @ x``.

        Args:
            A: ``[n, k]``, a matrix or array of scipy.sparse in any format.

        Returns:
            The graph with a receiver for each row of A and a sender for each column, and the
            weights ``[m]`` of A's dtype as JAX has it. Edges stand in the order in which A stores
            them, or in which ``A.tocoo()`` does; explicit zeros and duplicates stay edges.

        Raises:
            TypeError: A is no such matrix, or JAX has no such dtype.
            ValueError: A is not two-dimensional.
            IndexError: A's own indices are out of range.

        Example:
            >>> import jax_index, scipy.sparse
            >>> A = scipy.sparse.coo_array(([2.0, 3.0], ([0, 1], [2, 0])), shape=(2, 3))
            >>> graph, weights = jax_index.Graph.from_scipy(A)
            >>> graph.senders.ids.tolist(), graph.receivers.ids.tolist(), weights.tolist()
            ([2, 0], [0, 1], [2.0, 3.0])
        """
        ends, weights = _matrices.scipy_ends("Graph.from_scipy", A)
        return cls._of(*linked(*ends)), weights

    @classmethod
    def from_bcoo(cls, M: Any) -> tuple[Graph, jax.Array]:
        """Return the graph and the weights of a BCOO: ``spmm(graph, x, weights) = M @ x``.

        Args:
            M: ``[n, k]``, a jax.experimental.sparse.BCOO with n_batch = n_dense = 0, traced or not.

        Returns:
            The graph with a receiver for each row of M and a sender for each column, and M.data.
            Edges stand in M's order, duplicates stay edges, and padding (indices out of range) is
            dropped.

        Raises:
            TypeError: M is no BCOO.
            ValueError: M is not two-dimensional, or has batch or dense dimensions.

        Example:
            >>> import jax.numpy as jnp, jax_index
            >>> from jax.experimental.sparse import BCOO
            >>> M = BCOO.fromdense(jnp.array([[0.0, 2.0], [3.0, 0.0]]), nse=3)
            >>> graph, weights = jax_index.Graph.from_bcoo(M)
            >>> graph.senders.ids.tolist(), weights.tolist()
            ([1, 0, -1], [2.0, 3.0, 0.0])
        """
        ends, weights = _matrices.bcoo_ends("Graph.from_bcoo", M)
        return cls._of(*linked(*ends)), weights

    @classmethod
    def from_bcsr(cls, M: Any) -> tuple[Graph, jax.Array]:
        """Return the graph and the weights of a BCSR: ``spmm(graph, x, weights) = M @ x``.

        Args:
            M: ``[n, k]``, a jax.experimental.sparse.BCSR with n_batch = n_dense = 0, traced or not.

        Returns:
            As :meth:`from_bcoo`; what stands behind ``M.indptr[n]`` is dropped too. The receivers
            of concrete row bounds are in order, so that no sort is needed for them.

        Raises:
            TypeError: M is no BCSR.
            ValueError: M is not two-dimensional, has batch or dense dimensions, or its concrete row
                bounds do not start at 0, decrease, or end beyond its indices.

        Example:
            >>> import jax.numpy as jnp, jax_index
            >>> from jax.experimental.sparse import BCSR
            >>> M = BCSR.fromdense(jnp.array([[0.0, 2.0], [3.0, 0.0]]))
            >>> graph, weights = jax_index.Graph.from_bcsr(M)
            >>> graph.receivers.identity, weights.tolist()
            (True, [2.0, 3.0])
        """
        ends, weights = _matrices.bcsr_ends("Graph.from_bcsr", M)
        return cls._of(*linked(*ends)), weights

    @classmethod
    def from_jraph(cls, g: Any) -> Graph:
        """Return the graph of a jraph.GraphsTuple, or of an object with the same fields.

        Args:
            g: an object with ``senders``, ``receivers`` and ``n_node``. The number of nodes is the
                sum of ``n_node``; where that is traced or None, the length of the arrays in
                ``g.nodes``.

        Returns:
            The graph with as many senders as receivers. The edges of padding graphs, as
            jraph.pad_with_graphs appends them, stay edges among the padding nodes.

        Raises:
            TypeError: g lacks one of the fields, or the number of nodes is not known.
            IndexError: concrete ids are out of range.
            ValueError: unequal lengths.

        Example:
            >>> import types, jax_index
            >>> g = types.SimpleNamespace(senders=[0, 2], receivers=[1, 0], n_node=[2, 1])
            >>> jax_index.Graph.from_jraph(g).num_senders
            3
        """
        return cls._of(*linked(*_matrices.jraph_ends("Graph.from_jraph", g)))

    @property
    def num_senders(self) -> int:
        """The number of nodes that send."""
        return self.senders.num_rows

    @property
    def num_receivers(self) -> int:
        """The number of nodes that receive."""
        return self.receivers.num_rows

    @property
    def num_edges(self) -> int:
        """The number of edges m, dropped ones included."""
        return self.receivers.num_edges

    @property
    def T(self) -> Graph:  # noqa: N802 (the name that matrices have)
        """The graph with all edges turned round; its arrays are those of this one."""
        return self._of(self.receivers, self.senders, self.receiver_of, self.sender_of)

    @property
    def generic(self) -> Graph:
        """The same graph with the flags of both plans cleared, see :attr:`IndexPlan.generic`."""
        plans = self.senders.generic, self.receivers.generic
        return self._of(*plans, self.sender_of, self.receiver_of)

    @property
    def static(self) -> StaticGraph:
        """The graph as static metadata of programs, see :class:`StaticGraph`.

        Needs a single concrete graph as Graph made it: a TypeError or ValueError says so otherwise.
        """
        from jax_index._static import static_graph

        return static_graph(self)

    @property
    def by_receiver(self) -> tuple[IndexPlan, jax.Array]:
        """The receivers' plan and the sender of each edge in its row order."""
        return self.receivers, self.sender_of

    @property
    def by_sender(self) -> tuple[IndexPlan, jax.Array]:
        """The senders' plan and the receiver of each edge in its row order."""
        return self.senders, self.receiver_of

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays of the graph take."""
        return self.senders.nbytes + self.receivers.nbytes + 8 * self.num_edges

    @property
    def digest(self) -> str:
        """A hexadecimal digest of the content: both sizes, and both ids with dropped ones as -1."""
        cached = self.__dict__.get("_digest")
        if cached is None:
            for name, plan in (("senders", self.senders), ("receivers", self.receivers)):
                _plan.concrete_ids("Graph", plan, "Hash or compare", name)
            cached = joint_digest(self.senders.digest, self.receivers.digest)
            self.__dict__["_digest"] = cached
        return cached

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Graph):
            return NotImplemented
        return self.digest == other.digest

    def __repr__(self) -> str:
        return f"Graph(senders={self.senders!r}, receivers={self.receivers!r})"

    def sort_edges(self) -> tuple[Graph, jax.Array]:
        """Bring the edges into the row order of the receivers, so that sums read them in sequence.

        Returns:
            The graph of the same edges, ordered by receiver and in the old order within each, with
            dropped ones last; and perm, int32 ``[m]``: ``edge_array[perm]`` belongs to the new
            graph. Flags are those of a new graph; a traced one is sorted on the device.

        Raises:
            TypeError: the graph is a stack of graphs.

        Example:
            >>> import jax_index
            >>> graph = jax_index.Graph([0, 1, 2], [1, 0, 1], num_senders=3, num_receivers=2)
            >>> ordered, perm = graph.sort_edges()
            >>> ordered.receivers.ids.tolist(), ordered.senders.ids.tolist(), perm.tolist()
            ([0, 1, 1], [1, 0, 2], [1, 0, 2])
        """
        op, old = "Graph.sort_edges", self.receivers
        ends = read_ends(op, self.senders, old, None, None, None)
        perm = old.perm
        if any(end.traced for end in ends):
            rows = [jnp.take(jnp.asarray(end.rows), perm, mode="clip") for end in ends]
            senders = _plan.build_traced(rows[0], self.num_senders)
            senders = dataclasses.replace(senders, no_long_row=self.senders.no_long_row)
            in_order = jax.lax.iota(jnp.int32, self.num_edges)
            receivers = dataclasses.replace(old, ids=rows[1], perm=in_order, identity=True)
            receiver_of = jnp.take(rows[1], senders.perm, mode="clip")
            return self._of(senders, receivers, rows[0], receiver_of), perm
        order = np.asarray(perm)
        moved = [
            dataclasses.replace(end, rows=np.take(end.rows, order, mode="clip"), plan=None)
            for end in ends
        ]
        return self._of(*linked(*moved)), perm

    def pad_to(self, num_edges: int, num_senders: int, num_receivers: int) -> Graph:
        """Append edges that belong to no row, and nodes without edges: graphs for size buckets.

        Args:
            num_edges: the number of edges to reach, at least that of the graph.
            num_senders: the number of senders to reach, likewise.
            num_receivers: the number of receivers to reach, likewise.

        Returns:
            The padded graph, with the flags of this one; a traced one is padded on the device.

        Raises:
            TypeError: a size is no whole number, or the graph is a stack of graphs.
            ValueError: a size is smaller than the graph's.

        Example:
            >>> import jax_index
            >>> graph = jax_index.Graph([0, 1], [1, 0], num_senders=2, num_receivers=2)
            >>> graph.pad_to(3, num_senders=2, num_receivers=4).sender_of.tolist()
            [1, 0, -1]
        """
        op = "Graph.pad_to"
        senders = _plan.pad(op, self.senders, num_edges, num_senders, "senders")
        receivers = _plan.pad(op, self.receivers, num_edges, num_receivers, "receivers")
        more = senders.num_edges - self.num_edges
        others = self.sender_of, self.receiver_of
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(self)):
            padded = [_csr.minus_ones(other, more, jnp) for other in others]
        else:
            host = [_csr.minus_ones(np.asarray(other), more, np) for other in others]
            padded = _csr.concrete(host)
        return self._of(senders, receivers, *padded)

    def save(self, path: Any) -> None:
        """Write the graph to a file in NumPy's npz format, from which :meth:`load` rebuilds it.

        Args:
            path: a path; the file is written under exactly this name.

        Raises:
            TypeError: the graph is traced, or a stack of graphs.
            OSError: the file cannot be written.
        """
        content: dict[str, Any] = {}
        flags: list[bool] = []
        for name, plan in (("senders", self.senders), ("receivers", self.receivers)):
            ids = _plan.concrete_ids("Graph.save", plan, "Save", name)
            content[name] = _plan.canonical(ids, plan.num_rows)
            content[f"num_{name}"] = np.int64(plan.num_rows)
            flags += [plan.identity, plan.no_long_row]
        _file.write(path, "Graph", {**content, "flags": np.array(flags), "digest": self.digest})

    @classmethod
    def load(cls, path: Any) -> Graph:
        """Read a graph that :meth:`save` wrote: the ids are checked and sorted anew.

        Args:
            path: the path of the file.

        Returns:
            A graph equal to the one saved, with the flags of its plans.

        Raises:
            ValueError: the file is none of a graph, is damaged, or is of another version.
            OSError: the file cannot be read.
        """
        op, names = "Graph.load", ("senders", "receivers")
        found = _file.read(op, path, "Graph", names, ("num_senders", "num_receivers"), num_flags=4)
        content = [(found[name], found[f"num_{name}"]) for name in names]
        digest = joint_digest(*(_plan.content_digest(*each) for each in content))
        _file.check_digest(op, "Graph", found, digest)
        flags = found["flags"]
        senders = _plan.restore(*content[0], *flags[:2])
        receivers = _plan.restore(*content[1], *flags[2:])
        return cls._of(*linked(*read_ends(op, senders, receivers, None, None, None)))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # A stack of graphs, or what a tree map made of one, is pickled as it is.
        for plan in (self.senders, self.receivers):
            if not isinstance(plan, IndexPlan) or not plan.pickled_by_content:
                return super().__reduce_ex__(protocol)
        return type(self), (self.senders, self.receivers)

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self._of(*(getattr(self, name) for name in FIELDS))


def joint_digest(senders: str, receivers: str) -> str:
    """Digest the digests of the plans of both ends."""
    return hashlib.blake2b(f"{senders}:{receivers}".encode(), digest_size=16).hexdigest()


def _children(graph: Graph) -> tuple[tuple[Any, ...], None]:
    return (graph.senders, graph.receivers, graph.sender_of, graph.receiver_of), None


def _named_children(graph: Graph) -> tuple[tuple[tuple[Any, Any], ...], None]:
    return tuple((jax.tree_util.GetAttrKey(name), getattr(graph, name)) for name in FIELDS), None


# As a registered dataclass, unflattening would call the constructor, which checks its arguments.
jax.tree_util.register_pytree_with_keys(
    Graph, _named_children, lambda _, fields: Graph._of(*fields), _children
)
