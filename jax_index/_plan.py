# SPDX-License-Identifier: Apache-2.0
"""IndexPlan: the rows of the edges and the CSR of the transposed selection matrix, built once."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _check, _csr, _file, _ids, _traced
from jax_index._csr import GROUP as GROUP
from jax_index._csr import LONG_ROW as LONG_ROW
from jax_index._csr import num_tasks as num_tasks

if TYPE_CHECKING:
    from jax_index._static import StaticPlan

MODES = ("raise", "drop")


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("ids", "indptr", "perm", "tasks"),
    meta_fields=("num_rows", "num_edges", "identity", "no_long_row"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class IndexPlan:
    """Which row each of m edges belongs to, ready for every op of this package.

    With S the selection matrix ``[m, n]``, ``S[e, ids[e]] = 1``, a plan holds the CSR of Sᵀ: the
    edges of row i, in the caller's order, are ``perm[indptr[i]:indptr[i + 1]]``; edges that belong
    to no row stand last in ``perm``. Make one with :func:`make_plan`.

    A plan is a pytree. Pass it to a jitted function **as an argument**: the function is traced once
    for all plans of equal sizes and flags. Closed over, its arrays become constants of the program;
    as a static argument it is compared by content.

    Attributes:
        ids: int32 ``[m]``, the row of each edge, -1 where it has none.
        indptr: int32 ``[n + 1]``.
        perm: int32 ``[m]``.
        tasks: int32 ``[m // 129 + 1, 2]``, the schedule of rows with more than 128 edges.
        num_rows: n.
        num_edges: m.
        identity: whether ``perm`` is known to be 0, 1, …, m - 1 (sorted ids).
        no_long_row: whether no row is known to have more than 128 edges.
    """

    ids: jax.Array
    indptr: jax.Array
    perm: jax.Array
    tasks: jax.Array
    num_rows: int
    num_edges: int
    identity: bool
    no_long_row: bool
    is_static: ClassVar[bool] = False

    @property
    def generic(self) -> IndexPlan:
        """The same plan with both flags cleared.

        Generic plans of equal sizes share one trace and can be stacked, whatever their ids.
        """
        return dataclasses.replace(self, identity=False, no_long_row=False)

    @property
    def static(self) -> StaticPlan:
        """The plan as static metadata of programs, see :class:`StaticPlan`.

        Needs a single concrete plan as make_plan returned it: a TypeError or ValueError says so
        otherwise.
        """
        from jax_index._static import static_plan

        return static_plan(self)

    @property
    def digest(self) -> str:
        """A hexadecimal digest of the content: num_rows, and ids with dropped ones as -1."""
        cached = self.__dict__.get("_digest")
        if cached is None:
            ids = concrete_ids("IndexPlan", self, "Hash or compare")
            cached = content_digest(ids, self.num_rows)
            self.__dict__["_digest"] = cached
        return cached

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, IndexPlan):
            return NotImplemented
        return self.num_rows == other.num_rows and self.digest == other.digest

    def __repr__(self) -> str:
        flags = [name for name in ("identity", "no_long_row") if getattr(self, name)]
        return (
            f"IndexPlan(num_edges={self.num_edges}, num_rows={self.num_rows}"
            + "".join(f", {flag}=True" for flag in flags)
            + ")"
        )

    @property
    def arrays(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """The arrays in the order in which kernels take them."""
        return self.ids, self.indptr, self.perm, self.tasks

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays of the plan take."""
        return 4 * (2 * self.num_edges + self.num_rows + 1 + 2 * num_tasks(self.num_edges))

    def pad_to(self, num_edges: int, num_rows: int) -> IndexPlan:
        """Append edges that belong to no row, and rows without edges: plans for buckets of sizes.

        Plans of one bucket share a trace if their flags are equal too; `.generic` makes them so.

        Args:
            num_edges: the number of edges to reach, at least that of the plan.
            num_rows: the number of rows to reach, at least that of the plan.

        Returns:
            The plan that :func:`make_plan` gives for ``ids`` with -1 appended, with the flags of
            this one. A plan of traced arrays is padded on the device.

        Raises:
            TypeError: a size is no whole number, or the plan is a stack of plans.
            ValueError: a size is smaller than the plan's.

        Example:
            >>> import jax_index
            >>> plan = jax_index.make_plan([1, 0], num_rows=2).pad_to(3, num_rows=4)
            >>> plan.ids.tolist(), plan.indptr.tolist()
            ([1, 0, -1], [0, 1, 2, 2, 2])
        """
        return pad("IndexPlan.pad_to", self, num_edges, num_rows)

    def save(self, path: Any) -> None:
        """Write the plan to a file in NumPy's npz format, from which :meth:`load` rebuilds it.

        Args:
            path: a path; the file is written under exactly this name.

        Raises:
            TypeError: the plan is traced, or a stack of plans.
            OSError: the file cannot be written.

        Example:
            >>> import jax_index, tempfile, os
            >>> plan = jax_index.make_plan([1, 0, 1], num_rows=2)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     plan.save(os.path.join(folder, "plan.npz"))
            ...     jax_index.IndexPlan.load(os.path.join(folder, "plan.npz")) == plan
            True
        """
        ids, num_rows, *flags = self._content("IndexPlan.save", "Save")
        content = {"ids": ids, "num_rows": np.int64(num_rows), "flags": np.array(flags)}
        _file.write(path, "IndexPlan", {**content, "digest": self.digest})

    @classmethod
    def load(cls, path: Any) -> IndexPlan:
        """Read a plan that :meth:`save` wrote: the ids are checked and sorted anew.

        Args:
            path: the path of the file.

        Returns:
            A plan equal to the one saved, with its flags.

        Raises:
            ValueError: the file is none of a plan, is damaged, or is of a later version.
            OSError: the file cannot be read.
        """
        op, kind = "IndexPlan.load", "IndexPlan"
        found = _file.read(op, path, kind, ("ids",), ("num_rows",), num_flags=2)
        ids, num_rows = found["ids"], found["num_rows"]
        _file.check_digest(op, kind, found, content_digest(ids, num_rows))
        return restore(ids, num_rows, *found["flags"])

    def _content(self, op: str, use: str) -> tuple[np.ndarray, int, bool, bool]:
        """What the plan is rebuilt from."""
        ids = canonical(concrete_ids(op, self, use), self.num_rows)
        return ids, self.num_rows, self.identity, self.no_long_row

    @property
    def pickled_by_content(self) -> bool:
        """Whether a pickle holds ids and sizes; a stack, say, is pickled as the arrays it is."""
        return isinstance(self.ids, jax.core.Tracer) or is_whole(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.pickled_by_content:
            return super().__reduce_ex__(protocol)
        return restore, self._content("IndexPlan", "Pickle")

    def __copy__(self) -> IndexPlan:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> IndexPlan:
        return dataclasses.replace(self)


def restore(ids: np.ndarray, num_rows: int, identity: bool, no_long_row: bool) -> IndexPlan:
    """Rebuild a plan from what a file or a pickle holds; a flag is kept if it is true."""
    plan = build("IndexPlan", ids, num_rows, "drop")
    flags = plan.identity and identity, plan.no_long_row and no_long_row
    return dataclasses.replace(plan, identity=flags[0], no_long_row=flags[1])


def canonical(ids: np.ndarray, num_rows: int) -> np.ndarray:
    """Return ids as int32, -1 where they name no row; without a copy where they are so already."""
    outside = (ids < 0) | (ids >= num_rows)
    if ids.dtype == np.int32 and not (ids[outside] != -1).any():
        return ids
    # Cast apart from the -1, which an unsigned type cannot hold.
    rows = ids.astype(np.int32)
    rows[outside] = -1
    return rows


def content_digest(ids: np.ndarray, num_rows: int) -> str:
    """Digest int32 ids (any that name no row count as -1) and num_rows."""
    head = hashlib.blake2b(digest_size=16)
    head.update(f"{num_rows}:".encode())
    head.update(canonical(ids, num_rows).view(np.uint8).data)
    return head.hexdigest()


def is_whole(plan: IndexPlan) -> bool:
    """Whether the ids are those of one concrete plan, and no stack, shape or other leaf."""
    if isinstance(plan.ids, jax.core.Tracer):
        return False
    kind = getattr(plan.ids, "dtype", None), getattr(plan.ids, "shape", None)
    return kind == (np.int32, (plan.num_edges,)) and hasattr(plan.ids, "__array__")


def concrete_ids(op: str, plan: IndexPlan, use: str, argument: str = "") -> np.ndarray:
    """Return the ids of a plan on the host, or say that `use` needs a single concrete plan.

    `argument` is empty for a plan that stands by itself; it names the side of a graph.
    """
    what, made = ("graph", "Graph makes") if argument else ("plan", "make_plan returned")
    if isinstance(plan.ids, jax.core.Tracer) or not hasattr(plan.ids, "__array__"):
        fix = f"{use} the {what} outside of jit, or pass it as an argument."
        given = f"a plan whose ids are {_check.describe(plan.ids)}"
        _check.fail(TypeError, op, argument or "self", "concrete", given, fix)
    name = f"{argument}.ids" if argument else "ids"
    if not is_whole(plan):
        fix = f"{use} single {what}s, as {made} them."
        expected = f"an int32 array of shape {(plan.num_edges,)}"
        _check.fail(TypeError, op, name, expected, _check.describe(plan.ids), fix)
    return _ids.host_ids(op, plan.ids, name)


def one_row(num_edges: int) -> IndexPlan:
    """Return the plan of edges that all belong to one row; made in a traced program, unsorted."""
    tasks = np.empty(2 * num_tasks(num_edges), np.int32)
    bounds = np.array([0, num_edges], np.int32)
    no_long_row = _csr.fill_tasks(bounds, tasks)
    ids, perm = jnp.zeros(num_edges, jnp.int32), jax.lax.iota(jnp.int32, num_edges)
    pairs = jnp.asarray(tasks.reshape(-1, 2))
    return IndexPlan(ids, jnp.asarray(bounds), perm, pairs, 1, num_edges, True, no_long_row)


def check_leaves(op: str, plan: IndexPlan, argument: str = "plan") -> None:
    """Check that the arrays of a plan still are those of one plan."""
    if plan.is_static or plan.__dict__.get("_built"):
        return
    m, n = plan.num_edges, plan.num_rows
    leaves = (
        ("ids", plan.ids, (m,)),
        ("indptr", plan.indptr, (n + 1,)),
        ("perm", plan.perm, (m,)),
        ("tasks", plan.tasks, (num_tasks(m), 2)),
    )
    for name, leaf, shape in leaves:
        _check.int32_leaf(op, f"{argument}.{name}", leaf, shape, "plan", "make_plan")


def pad(op: str, plan: IndexPlan, num_edges: Any, num_rows: Any, argument: str = "") -> IndexPlan:
    """Pad `plan` for `op`; `argument` as in `concrete_ids`."""
    check_leaves(op, plan, argument or "plan")
    sizes = []
    for name, value, least in (
        ("num_edges", num_edges, plan.num_edges),
        (rows_name(argument), num_rows, plan.num_rows),
    ):
        sizes.append(_check.size(op, name, value))
        if sizes[-1] < least:
            fix = "Padding takes nothing away: pass the present size or a larger one."
            _check.fail(ValueError, op, name, f"at least {least}", str(value), fix)
    m, n = sizes
    if any(isinstance(leaf, jax.core.Tracer) for leaf in plan.arrays):
        ids, indptr, perm, tasks = _csr.padded(plan.arrays, m, n, jnp)
    else:
        concrete_ids(op, plan, "Pad", argument)
        host = [np.asarray(leaf) for leaf in plan.arrays]
        ids, indptr, perm, tasks = _csr.concrete(_csr.padded(host, m, n, np))
    return IndexPlan(ids, indptr, perm, tasks, n, m, plan.identity, plan.no_long_row)


def rows_name(argument: str) -> str:
    """Name the number of rows that belongs to an argument: that of ids, or the side of a graph."""
    if argument == "segment_ids":
        return "num_segments"
    return f"num_{argument}" if argument in ("senders", "receivers") else "num_rows"


def make_plan(ids: Any, num_rows: int, *, mode: str = "raise") -> IndexPlan:
    """Build the plan of ``ids``: a stable counting sort, O(m + n), once.

    Args:
        ids: ``[m]`` integers (list, NumPy array or JAX array of any integer dtype; 64-bit ids are
            read as such whether x64 is on or not). The row of each edge. A traced array (under jit,
            vmap or scan) is sorted on the device and needs ``mode="drop"``.
        num_rows: n, the number of rows on the node side, at most 2**31 - 1.
        mode: ``"raise"``: an id outside ``[0, num_rows)`` is an IndexError. ``"drop"``: such an id
            (-1 or num_rows as padding; -1 never wraps) belongs to no row: sums never read its edge,
            gather gives the fill value there, its gradient is 0.

    Returns:
        An :class:`IndexPlan`. The ids are copied: later changes of a NumPy array have no effect.

    Raises:
        IndexError: an id is out of range in mode "raise"; the text names the first one.
        TypeError: ids are not integers, or num_rows is no whole number.
        ValueError: ids are not one-dimensional, a size is out of range, or mode is unknown.

    Determinism:
        The plan is a function of ids and num_rows alone.

    Example:
        >>> import jax_index
        >>> plan = jax_index.make_plan([2, 0, 2], num_rows=4)
        >>> plan.perm.tolist(), plan.indptr.tolist()
        ([1, 0, 2], [0, 1, 1, 3, 3])
    """
    return build("make_plan", ids, _check.size("make_plan", "num_rows", num_rows), mode)


def build(
    op: str,
    ids: Any,
    num_rows: int,
    mode: str,
    host: np.ndarray | None = None,
    argument: str = "ids",
) -> IndexPlan:
    """Build a plan for `op`, whose name errors carry; num_rows is checked already.

    `host` is `host_ids(op, ids)` where that is known; errors call the ids `argument`.
    """
    if not isinstance(mode, str) or mode not in MODES:
        fix = "-1 never wraps; use 'drop' for padding."
        _check.fail(ValueError, op, "mode", "'raise' or 'drop'", repr(mode), fix)
    if isinstance(ids, jax.core.Tracer):
        return build_traced(traced_rows(op, ids, num_rows, mode, argument), num_rows)
    host = _ids.host_ids(op, ids, argument) if host is None else host
    found = _csr.from_ids(host, num_rows, mode == "drop")
    if found.first_bad >= 0 and mode == "raise":
        refuse_id(op, ids, host, found.first_bad, num_rows, argument)
    return _finish(found, num_rows)


def refuse_id(
    op: str, given: Any, host: np.ndarray, k: int, num_rows: int, argument: str = "ids"
) -> NoReturn:
    """Say that the id at position k names no row."""
    fix = "Use mode='drop' if such ids are padding."
    found = f"{argument}[{k}] = {_ids.entry(given, host, k)}"
    expected = f"in [0, {num_rows}) ({rows_name(argument)} is {num_rows})"
    _check.fail(IndexError, op, f"every {argument[:-1]}", expected, found, fix)


def _finish(found: _csr.HostArrays, num_rows: int) -> IndexPlan:
    ids, indptr, perm, tasks = _csr.concrete(found[:4])
    flags = found.identity, found.no_long_row
    plan = IndexPlan(ids, indptr, perm, tasks, num_rows, ids.size, *flags)
    # What .static otherwise checks, since plans also come out of tree maps.
    plan.__dict__["_built"] = True
    return plan


def traced_rows(op: str, ids: Any, num_rows: int, mode: str, argument: str = "ids") -> Any:
    """Check traced ids; return them as int32, -1 where they name no row."""
    if mode == "raise":
        fix = "Values of a traced array cannot raise: pass mode='drop'."
        _check.fail(ValueError, op, "mode", f"'drop' for traced {argument}", "'raise'", fix)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        fix = "Pass a one-dimensional array of integers."
        _check.fail(TypeError, op, argument, "an integer array", f"dtype {ids.dtype}", fix)
    if ids.ndim != 1:
        fix = "Pass a one-dimensional array of integers; use vmap for a batch."
        _check.fail(ValueError, op, argument, "one-dimensional", f"shape {ids.shape}", fix)
    _check.size(op, f"the number of {argument}", ids.shape[0])
    return _csr.traced_rows(ids, num_rows)


def build_traced(rows: Any, num_rows: int) -> IndexPlan:
    """Build the same plan on the device from what `traced_rows` returned."""
    return IndexPlan(
        *_traced.from_traced_rows(rows, num_rows), num_rows, rows.shape[0], False, False
    )


def make_plan_from_indptr(indptr: Any) -> IndexPlan:
    """Build the plan of edges that are grouped by row already, from the row bounds.

    Args:
        indptr: ``[n + 1]`` integers: the edges of row i are ``indptr[i], …, indptr[i + 1] - 1``.
            Starts at 0 and never decreases; ``indptr[n]`` is the number of edges.

    Returns:
        The :class:`IndexPlan` of ids ``repeat(arange(n), diff(indptr))``.

    Raises:
        TypeError: indptr are not concrete integers.
        ValueError: indptr is not one-dimensional, is empty, does not start at 0, decreases, or ends
            beyond 2**31 - 1. The text names the position.

    Example:
        >>> import jax_index
        >>> jax_index.make_plan_from_indptr([0, 2, 2, 3]).ids.tolist()
        [0, 0, 2]
    """
    return build_from_bounds("make_plan_from_indptr", indptr)


def build_from_bounds(op: str, indptr: Any, argument: str = "indptr") -> IndexPlan:
    """Check row bounds for `op` and build their plan."""
    if isinstance(indptr, jax.core.Tracer):
        fix = "Build the plan outside of jit and pass it as an argument."
        _check.fail(TypeError, op, argument, "concrete", _check.describe(indptr), fix)
    # Copied before it is looked at: the caller's array may change meanwhile.
    bounds = _ids.host_ids(op, indptr, argument).copy()
    fix = "Pass the n + 1 row bounds of a CSR matrix."
    if bounds.size == 0:
        _check.fail(ValueError, op, argument, "one entry at least", "an empty array", fix)
    if bounds[0] != 0:
        _check.fail(
            ValueError,
            op,
            argument,
            "0 at its start",
            f"{argument}[0] = {_ids.entry(indptr, bounds, 0)}",
            fix,
        )
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if falls.size:
        k = int(falls[0])
        pair = [_ids.entry(indptr, bounds, at) for at in (k, k + 1)]
        given = f"{argument}[{k}] = {pair[0]} and {argument}[{k + 1}] = {pair[1]}"
        _check.fail(ValueError, op, argument, "non-decreasing", given, fix)
    if bounds[-1] > _check.MAX_SIZE:
        fix = "Split the edges: positions are 32-bit."
        expected = f"at most {_check.MAX_SIZE} at its end"
        _check.fail(ValueError, op, argument, expected, str(_ids.entry(indptr, bounds, -1)), fix)
    return _finish(_csr.from_bounds(bounds), bounds.size - 1)
