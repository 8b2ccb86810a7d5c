# SPDX-License-Identifier: Apache-2.0
"""IndexPlan: the rows of the edges and the CSR of the transposed selection matrix, built once."""

from __future__ import annotations

import dataclasses
import hashlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _check, _native
from jax_index._storage import SUB_BYTE_INTEGERS

# The schedule of long rows; the same numbers as in cpp/core/order.h and csr.h.
LONG_ROW = 128
GROUP = 1024

MODES = ("raise", "drop")


def num_tasks(num_edges: int) -> int:
    """Return the length of the list of long-row tasks, its end included."""
    return num_edges // (LONG_ROW + 1) + 1


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

    @property
    def generic(self) -> IndexPlan:
        """The same plan with both flags cleared.

        Generic plans of equal sizes share one trace and can be stacked, whatever their ids.
        """
        return dataclasses.replace(self, identity=False, no_long_row=False)

    @property
    def digest(self) -> str:
        """A hexadecimal digest of the content: num_rows, and ids with dropped ones as -1."""
        cached = self.__dict__.get("_digest")
        if cached is None:
            if isinstance(self.ids, jax.core.Tracer) or not hasattr(self.ids, "__array__"):
                fix = "Hash or compare the plan outside of jit, or pass it as an argument."
                given = f"a plan whose ids are {_check.describe(self.ids)}"
                _check.fail(TypeError, "IndexPlan", "self", "concrete", given, fix)
            kind = getattr(self.ids, "dtype", None), getattr(self.ids, "shape", None)
            if kind[0] != np.int32 or kind[1] != (self.num_edges,):
                fix = "Hash or compare single plans, as make_plan returned them."
                expected = f"an int32 array of shape {(self.num_edges,)}"
                given = _check.describe(self.ids)
                _check.fail(TypeError, "IndexPlan", "ids", expected, given, fix)
            cached = content_digest(np.asarray(self.ids), self.num_rows)
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

    def __copy__(self) -> IndexPlan:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> IndexPlan:
        return dataclasses.replace(self)


def content_digest(ids: np.ndarray, num_rows: int) -> str:
    """Digest ids (any that name no row count as -1) and num_rows."""
    outside = (ids < 0) | (ids >= num_rows)
    if (ids[outside] != -1).any():
        ids = np.where(outside, np.int32(-1), ids)
    head = hashlib.blake2b(digest_size=16)
    head.update(f"{num_rows}:".encode())
    head.update(np.ascontiguousarray(ids).view(np.uint8).data)
    return head.hexdigest()


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


def build(op: str, ids: Any, num_rows: int, mode: str, host: np.ndarray | None = None) -> IndexPlan:
    """Build a plan for `op`, whose name errors carry; num_rows is checked already.

    `host` is `host_ids(op, ids)` where that is known.
    """
    if not isinstance(mode, str) or mode not in MODES:
        fix = "-1 never wraps; use 'drop' for padding."
        _check.fail(ValueError, op, "mode", "'raise' or 'drop'", repr(mode), fix)
    if isinstance(ids, jax.core.Tracer):
        return _build_traced(op, ids, num_rows, mode)
    return _build_host(op, ids, host_ids(op, ids) if host is None else host, num_rows, mode)


def host_ids(op: str, ids: Any, argument: str = "ids") -> np.ndarray:
    """Return concrete ids as a contiguous NumPy array of a native integer dtype, not yet cast."""
    fix = "Pass a one-dimensional list or array of integers."
    if isinstance(ids, jax.Array) and not ids.is_fully_addressable:
        fix = (
            "Gather them first with jax.experimental.multihost_utils.process_allgather(ids, "
            "tiled=True), or build the plan from host ids in every process."
        )
        given = "an array spread over devices of other processes"
        _check.fail(ValueError, op, argument, "fully addressable", given, fix)
    if isinstance(ids, np.ma.MaskedArray):
        fix = f"Fill the masked {argument} and drop them: ids.filled(-1) with mode='drop'."
        _check.fail(TypeError, op, argument, "an integer array", "a masked array", fix)
    try:
        out = np.asarray(ids)
    except ValueError:
        _check.fail(ValueError, op, argument, "one-dimensional", "a ragged sequence", fix)
    except TypeError:
        # Random keys, and lists that hold traced values.
        if not isinstance(ids, jax.Array):
            fix = "Make one array of them first, with jax.numpy.stack."
        _check.fail(TypeError, op, argument, "an integer array", _check.describe(ids), fix)
    if out.ndim == 0 and out.dtype.kind not in "biuf":
        _check.fail(TypeError, op, argument, "an integer array", _check.describe(ids), fix)
    if out.ndim != 1:
        _check.fail(ValueError, op, argument, "one-dimensional", f"shape {out.shape}", fix)
    if out.size == 0 and not isinstance(ids, np.ndarray | jax.Array):
        out = out.astype(np.int32)
    mixed = isinstance(ids, list | tuple) and any(type(i) is bool for i in ids)
    if mixed or out.dtype == np.bool_:
        fix = "Positions of a mask are numpy.flatnonzero(mask)."
        _check.fail(TypeError, op, argument, "an integer array", "dtype bool", fix)
    if out.dtype.kind not in "iu":
        out = _odd_integers(op, argument, ids, out, fix)
    if not out.dtype.isnative:
        out = out.astype(out.dtype.newbyteorder("="))
    if out.size > _check.MAX_SIZE:
        fix = "Split the edges: positions are 32-bit."
        expected = f"at most {_check.MAX_SIZE} entries"
        _check.fail(ValueError, op, argument, expected, f"{out.size} entries", fix)
    return np.ascontiguousarray(out)


def _odd_integers(op: str, argument: str, ids: Any, out: np.ndarray, fix: str) -> np.ndarray:
    """Read integers that NumPy holds as another kind: 4-bit ones, and lists beyond 64 bits."""
    if out.dtype.name in SUB_BYTE_INTEGERS:
        return out.astype(np.int8)
    if not isinstance(ids, np.ndarray | jax.Array):
        # NumPy turns a list with ids beyond int64 into floats or objects. They are out of range
        # whatever num_rows is, so that the nearest 64-bit value stands for them.
        items = list(ids)
        if all(isinstance(i, int | np.integer) and not isinstance(i, bool) for i in items):
            low, high = -(2**63), 2**63 - 1
            return np.array([min(max(int(i), low), high) for i in items], np.int64)
    return _check.fail(TypeError, op, argument, "an integer array", f"dtype {out.dtype}", fix)


def _entry(given: Any, host: np.ndarray, k: int) -> Any:
    """Entry k as the caller wrote it; `host` holds the nearest 64-bit one."""
    return given[k] if isinstance(given, list | tuple) else host[k]


def _build_host(op: str, given: Any, ids: np.ndarray, num_rows: int, mode: str) -> IndexPlan:
    m = ids.size
    arrays = (
        np.empty(m, np.int32),
        np.empty(num_rows + 1, np.int32),
        np.empty(m, np.int32),
        np.empty(2 * num_tasks(m), np.int32),
    )
    if _native.CPU.module is not None:
        first_bad, identity, no_long_row = _native.CPU.module.build_plan(
            ids, mode == "drop", *arrays
        )
    else:
        first_bad, identity, no_long_row = _build_numpy(ids, num_rows, *arrays)
    if first_bad >= 0 and mode == "raise":
        fix = "Use mode='drop' if such ids are padding."
        found = f"ids[{first_bad}] = {_entry(given, ids, first_bad)}"
        expected = f"in [0, {num_rows}) (num_rows is {num_rows})"
        _check.fail(IndexError, op, "every id", expected, found, fix)
    return _finish(arrays, num_rows, m, identity, no_long_row)


def _concrete(arrays: tuple[np.ndarray, ...]) -> list[jax.Array]:
    """Copy arrays to the default device: concrete and committed to nothing, wherever we are called.

    In a traced program, or under a mesh, JAX would make tracers or arrays that belong to the mesh.
    A thread of its own has neither; it is given the caller's default device.
    """
    device = getattr(jax.config, "jax_default_device", None)
    out = _put(arrays, device)
    if any(isinstance(a, jax.core.Tracer) or a.committed for a in out):
        with ThreadPoolExecutor(1) as clean:
            out = clean.submit(_put, arrays, device).result()
    return out


def _put(arrays: tuple[np.ndarray, ...], device: Any) -> list[jax.Array]:
    with jax.default_device(device):
        return [jax.device_put(a) for a in arrays]


def _finish(
    arrays: tuple[np.ndarray, ...], num_rows: int, m: int, identity: bool, no_long_row: bool
) -> IndexPlan:
    ids, indptr, perm, tasks = _concrete((*arrays[:3], arrays[3].reshape(-1, 2)))
    return IndexPlan(ids, indptr, perm, tasks, num_rows, m, bool(identity), bool(no_long_row))


def _build_numpy(
    ids: np.ndarray,
    num_rows: int,
    out_ids: np.ndarray,
    indptr: np.ndarray,
    perm: np.ndarray,
    tasks: np.ndarray,
) -> tuple[int, bool, bool]:
    """Do what the compiled builder does, where there is none."""
    bad = (ids >= num_rows) | (ids < 0)
    first_bad = int(np.argmax(bad)) if bad.any() else -1
    out_ids[:] = np.where(bad, -1, ids).astype(np.int32)
    rows = np.where(bad, num_rows, out_ids)
    perm[:] = np.argsort(rows, kind="stable")
    indptr[0] = 0
    np.cumsum(np.bincount(rows, minlength=num_rows + 1)[:num_rows], out=indptr[1:])
    identity = bool((np.diff(rows) >= 0).all())
    return first_bad, identity, _fill_tasks(indptr, tasks)


def _fill_tasks(indptr: np.ndarray, tasks: np.ndarray) -> bool:
    lengths = np.diff(indptr)
    giant = np.flatnonzero(lengths > GROUP)
    long = np.flatnonzero((lengths > LONG_ROW) & (lengths <= GROUP))
    rows = np.concatenate([giant, long])
    groups = -(-lengths[rows] // GROUP)
    tasks[:] = -1
    total = int(groups.sum())
    pairs = tasks.reshape(-1, 2)
    pairs[:total, 0] = np.repeat(rows, groups)
    pairs[:total, 1] = np.arange(total) - np.repeat(np.cumsum(groups) - groups, groups)
    return total == 0


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
    op = "make_plan_from_indptr"
    if isinstance(indptr, jax.core.Tracer):
        fix = "Build the plan outside of jit and pass it as an argument."
        _check.fail(TypeError, op, "indptr", "concrete", _check.describe(indptr), fix)
    # Copied before it is looked at: the caller's array may change meanwhile.
    bounds = host_ids(op, indptr, "indptr").copy()
    fix = "Pass the n + 1 row bounds of a CSR matrix."
    if bounds.size == 0:
        _check.fail(ValueError, op, "indptr", "one entry at least", "an empty array", fix)
    if bounds[0] != 0:
        _check.fail(
            ValueError,
            op,
            "indptr",
            "0 at its start",
            f"indptr[0] = {_entry(indptr, bounds, 0)}",
            fix,
        )
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if falls.size:
        k = int(falls[0])
        pair = [_entry(indptr, bounds, at) for at in (k, k + 1)]
        given = f"indptr[{k}] = {pair[0]} and indptr[{k + 1}] = {pair[1]}"
        _check.fail(ValueError, op, "indptr", "non-decreasing", given, fix)
    if bounds[-1] > _check.MAX_SIZE:
        fix = "Split the edges: positions are 32-bit."
        expected = f"at most {_check.MAX_SIZE} at its end"
        _check.fail(ValueError, op, "indptr", expected, str(_entry(indptr, bounds, -1)), fix)
    n, m = bounds.size - 1, int(bounds[-1])
    arrays = (
        np.empty(m, np.int32),
        bounds.astype(np.int32),
        np.empty(m, np.int32),
        np.empty(2 * num_tasks(m), np.int32),
    )
    if _native.CPU.module is not None:
        _, identity, no_long_row = _native.CPU.module.build_plan_from_indptr(*arrays)
    else:
        arrays[0][:] = np.repeat(np.arange(n), np.diff(bounds))
        arrays[2][:] = np.arange(m)
        identity, no_long_row = True, _fill_tasks(arrays[1], arrays[3])
    return _finish(arrays, n, m, identity, no_long_row)


def _build_traced(op: str, ids: Any, num_rows: int, mode: str) -> IndexPlan:
    """Build the same plan on the device, with integer operations alone."""
    if mode == "raise":
        fix = "Values of a traced array cannot raise: pass mode='drop'."
        _check.fail(ValueError, op, "mode", "'drop' for traced ids", "'raise'", fix)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        fix = "Pass a one-dimensional array of integers."
        _check.fail(TypeError, op, "ids", "an integer array", f"dtype {ids.dtype}", fix)
    if ids.ndim != 1:
        fix = "Pass a one-dimensional array of integers; use vmap for a batch."
        _check.fail(ValueError, op, "ids", "one-dimensional", f"shape {ids.shape}", fix)
    m = _check.size(op, "the number of ids", ids.shape[0])
    if jnp.iinfo(ids.dtype).bits < 32:
        ids = ids.astype(jnp.int32)
    # Compared in a type that holds both; only ids that fit are cast.
    inside = (ids >= 0) & (ids < jnp.asarray(num_rows, ids.dtype))
    rows = jnp.where(inside, ids, jnp.asarray(num_rows, ids.dtype)).astype(jnp.int32)
    # Positions are carried through the sort: stable, with no look-up after it.
    order, perm = jax.lax.sort(
        (rows, jax.lax.iota(jnp.int32, m)), dimension=0, is_stable=True, num_keys=1
    )
    every_row = jax.lax.iota(jnp.int32, num_rows + 1)
    indptr = jnp.searchsorted(order, every_row, side="left").astype(jnp.int32)
    return IndexPlan(
        jnp.where(inside, rows, -1).astype(jnp.int32),
        indptr,
        perm,
        _traced_tasks(indptr, m),
        num_rows,
        m,
        False,
        False,
    )


def _traced_tasks(indptr: jax.Array, m: int) -> jax.Array:
    count = num_tasks(m)
    lengths = jnp.diff(indptr)
    giant = lengths > GROUP
    # Rounded up without a sum that could overflow.
    groups = jnp.where(giant, (lengths - 1) // GROUP + 1, 0)
    single = (lengths > LONG_ROW) & ~giant
    giant_end = jnp.cumsum(groups, dtype=jnp.int32)
    total_giant = jnp.sum(groups, dtype=jnp.int32)
    single_end = total_giant + jnp.cumsum(single, dtype=jnp.int32)
    first = jnp.where(giant, giant_end - groups, jnp.where(single, single_end - 1, count))
    n = lengths.shape[0]
    owner = jnp.full(count, -1, jnp.int32)
    owner = owner.at[first].set(jax.lax.iota(jnp.int32, n), mode="drop")
    # Each task belongs to the last row that starts at or before it.
    position = jax.lax.iota(jnp.int32, count)
    start = jax.lax.cummax(jnp.where(owner >= 0, position, -1))
    total = total_giant + jnp.sum(single, dtype=jnp.int32)
    used = position < total
    row = jnp.where(used, owner[jnp.maximum(start, 0)], -1)
    group = jnp.where(used, position - start, -1)
    return jnp.stack([row, group], axis=-1).astype(jnp.int32)
