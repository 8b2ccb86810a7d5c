# SPDX-License-Identifier: Apache-2.0
"""Arrays that programs name instead of carrying them: one record for each content.

A record holds int32 arrays under a digest, and a native table maps the digest to where they lie. A
program carries the digest alone. Records live as long as somebody owns them: plans, static plans,
and programs that name them. JAX's own caches hold digests and keep nothing alive.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import mlir

from jax_index import _check, _csr, _native

Shape = tuple[int, ...]


class Key:
    """What a program knows of a record; compared by content.

    In a program that is traced but not yet compiled it carries an owner too, so that whatever keeps
    the program keeps the record.
    """

    __slots__ = ("__weakref__", "digest", "owner", "shapes")

    def __init__(self, digest: str, shapes: tuple[Shape, ...], owner: Owner | None = None):
        self.digest, self.shapes, self.owner = digest, shapes, owner

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return self.digest

    def __call__(self) -> Owner | None:
        """Return the owner."""
        return self.owner


# --- Records ------------------------------------------------------------------------------------


class Owner:
    """What keeps a record: hold one as long as the record is needed."""

    __slots__ = ("__weakref__", "kind", "record")

    def __init__(self, record: Record, kind: str):
        self.record = record
        self.kind = kind
        with _LOCK:
            record.owners.add(self)


class Record:
    """The arrays of one digest, on the host and, for what runs now, as arrays of JAX."""

    def __init__(self, key: Key, name: str, arrays: Sequence[jax.Array], host: Sequence[Any]):
        self.key = key
        self.name = name
        self.host = tuple(host)
        self.owners: weakref.WeakSet[Owner] = weakref.WeakSet()
        self._arrays = tuple(arrays)
        devices = sorted({str(device) for a in arrays for device in a.devices()})
        self.nbytes = dict.fromkeys(devices, sum(a.nbytes for a in host))
        if any(device.platform != "cpu" for a in arrays for device in a.devices()):
            self.nbytes["host"] = sum(a.nbytes for a in host)

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        """The arrays, whatever somebody did to the plan that they came from."""
        if any(a.is_deleted() for a in self._arrays):
            self._arrays = tuple(_csr.concrete(self.host))
        return self._arrays


_LOCK = threading.RLock()
_RECORDS: weakref.WeakValueDictionary[str, Record] = weakref.WeakValueDictionary()

# A record whose last owner is gone goes in two steps. It dies wherever Python happens to be, inside
# of JAX perhaps, so that it is only put into a queue there. Later calls of this module take it from
# the queue, and drop it some time after that: programs that were started but have not run yet may
# still look for it, and nothing tells when they have.
_DEAD: deque[_Remains] = deque()
_WAITING: list[_Remains] = []
SECONDS = 60.0
BYTES = 256 * 2**20  # more than this does not wait


class _Remains(NamedTuple):
    numbers: list[tuple[Any, int]]  # of the native tables
    kept: Any
    nbytes: int
    when: float


def own(digest: str, kind: str, make: Callable[[], tuple[str, Sequence[jax.Array]]]) -> Owner:
    """Return an owner of the record of `digest`; `make` gives the name and arrays of a new one."""
    sweep()
    owner = find(digest, kind)
    if owner is not None:
        return owner
    name, arrays = make()
    jax.block_until_ready(list(arrays))
    host = [np.asarray(a) for a in arrays]
    if any(a.committed for a in arrays):
        arrays = _csr.concrete(host)
    with _LOCK:
        record = _RECORDS.get(digest)
        if record is None:
            record = _create(digest, name, arrays, host)
        return Owner(record, kind)


def find(digest: str, kind: str) -> Owner | None:
    """Return an owner of the record of `digest`, if there is one."""
    with _LOCK:
        record = _RECORDS.get(digest)
        return None if record is None else Owner(record, kind)


def _create(digest: str, name: str, arrays: Sequence[jax.Array], host: list[Any]) -> Record:
    modules = [n.module for n in (_native.CPU, _native.CUDA) if n.module is not None]
    numbers = [(module, module.static_put(digest, host)) for module in modules]
    _place(digest, arrays)
    record = Record(Key(digest, tuple(a.shape for a in host)), name, arrays, host)
    _RECORDS[digest] = record
    nbytes = sum(a.nbytes for a in host)
    remains = _Remains(numbers, (tuple(arrays), tuple(host)), nbytes, 0.0)
    gone = weakref.finalize(record, _DEAD.append, remains)
    gone.atexit = False  # type: ignore[misc]
    return record


def _place(digest: str, arrays: Sequence[jax.Array]) -> None:
    """Let the device where the arrays are read them there, without another copy."""
    devices = {device for a in arrays for device in a.devices()}
    device = devices.pop()
    if devices or device.platform not in ("gpu", "cuda") or _native.CUDA.module is None:
        return
    pointers = [a.unsafe_buffer_pointer() for a in arrays]
    _native.CUDA.module.static_place(digest, device.local_hardware_id, pointers)


def sweep(seconds: float = SECONDS) -> None:
    """Free what records without owners held, `seconds` after they were found to have none."""
    with _LOCK:
        now = time.monotonic()
        while _DEAD:
            _WAITING.append(_DEAD.popleft()._replace(when=now))
        held = sum(remains.nbytes for remains in _WAITING)
        while _WAITING and (held > BYTES or now - _WAITING[0].when >= seconds):
            remains = _WAITING.pop(0)
            held -= remains.nbytes
            for module, number in remains.numbers:
                module.static_drop(number)


class LivePlan(NamedTuple):
    """One entry of :func:`live_plans`."""

    digest: str
    name: str
    nbytes: dict[str, int]
    owners: dict[str, int]


def live_plans() -> list[LivePlan]:
    """List the arrays that static plans and graphs hold, and who keeps them.

    A plan or graph that :attr:`IndexPlan.static` or :attr:`Graph.static` was asked for, or that a
    jitted function closed over, has a record: one for each content, shared by every program of the
    process. It goes when its last owner goes.

    Returns:
        A list of ``(digest, name, nbytes, owners)``: the content digest, which the text of programs
        carries; the repr of the plan, or of what a graph adds to its two plans; bytes by place (a
        device, or ``"host"`` for what later uploads read); and the numbers of owners by kind:
        ``"IndexPlan"``, ``"Graph"``, ``"StaticPlan"``, ``"StaticGraph"``, ``"program"``.

    Example:
        >>> import jax_index
        >>> plan = jax_index.make_plan([6, 0, 4, 6], num_rows=7).static
        >>> [found.owners for found in jax_index.live_plans() if found.digest == plan.digest]
        [{'StaticPlan': 1}]
    """
    with _LOCK:
        sweep()
        return [_describe(record) for _, record in sorted(_RECORDS.items())]


def _describe(record: Record) -> LivePlan:
    nbytes = dict(record.nbytes)
    if _native.CUDA.module is not None:
        for device, copied in _native.CUDA.module.static_copies(record.key.digest):
            nbytes[f"cuda:{device}"] = nbytes.get(f"cuda:{device}", 0) + copied
    owners = Counter(owner.kind for owner in list(record.owners))
    return LivePlan(record.key.digest, record.name, nbytes, dict(sorted(owners.items())))


# --- In programs --------------------------------------------------------------------------------


def _current_trace() -> Any:
    """Return the trace that JAX is in."""
    take = getattr(jax.extend.core, "take_current_trace", None)
    if take is None:  # before jax 0.10
        return jax.core.trace_ctx.trace
    with take() as trace:
        return trace


def staging() -> bool:
    """Whether what is computed now becomes part of a program that JAX writes down."""
    trace = _current_trace()
    while trace is not None and type(trace).__name__ != "DynamicJaxprTrace":
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


static_arrays_p = Primitive("jax_index_static_arrays")
static_arrays_p.multiple_results = True


# Names of the values of traced programs that are static arrays, by identity.
_NAMES: dict[int, tuple[weakref.ref[Any], str]] = {}


def arrays_of(key: Key) -> tuple[jax.Array, ...]:
    """Return the arrays of a record as values of the program that is traced, which owns it."""
    key = Key(key.digest, key.shapes, find(key.digest, "program"))
    # Not `key`: a cache of jax 0.8 has an argument of that name.
    values = tuple(static_arrays_p.bind(of=key))
    for k, value in enumerate(values):
        at = id(value)
        forget = weakref.ref(value, lambda _, at=at: _NAMES.pop(at, None))  # type: ignore[misc]
        _NAMES[at] = forget, f"{key.digest}/{k}"
    return values


Names = tuple[tuple[int, str], ...]


def names_of(operands: Sequence[Any]) -> Names:
    """Return (number, name) of each operand that is a static array."""
    if not _NAMES:
        return ()
    found = [(k, _NAMES.get(id(value))) for k, value in enumerate(operands)]
    return tuple((k, name[1]) for k, name in found if name and name[0]() is operands[k])


@static_arrays_p.def_abstract_eval
def _avals(of: Key) -> Any:
    return [jax.core.ShapedArray(shape, np.dtype(np.int32)) for shape in of.shapes]


def let_go_of(kind: type) -> None:
    """Let JAX's cache of abstract values refer to a type weakly: it keeps parameters of primitives.

    It does so for what can be called, and in later versions for the types in this set. Where that
    is gone, the cache keeps the records of its last 2048 entries.
    """
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("jax._src.util").weakref_cache_key_types.add(kind)


let_go_of(Key)


@static_arrays_p.def_impl
def _evaluate(of: Key) -> Any:
    owner = find(of.digest, "program")
    if owner is None:
        fix = "Load it first and keep it: jax_index.IndexPlan.load(path).static."
        expected, given = "known to this process", f"the digest {of.digest}"
        _check.fail(ValueError, "StaticPlan", "self", expected, given, fix)
    return list(owner.record.arrays)


def _reference(of: Key) -> Any:
    return [jnp.asarray(a) for a in _evaluate(of)]


ATTRIBUTE = "static"
_NAME = "static_arrays"


def _register(native: _native.Native, platform: str) -> None:
    rule = _native.lowering(_NAME, native, _reference)

    def lower(ctx: Any, *, of: Key) -> Any:
        owner = find(of.digest, "program")
        # A program that is exported keeps nothing alive: it may run in another process.
        parameters = ctx.module_context.lowering_parameters
        if owner is not None and not getattr(parameters, "for_export", False):
            ctx.module_context.add_keepalive(owner)
        if native.module is None:
            return rule(ctx, attributes={}, of=of)
        # The native part puts an array in the place of this. A call for each, so that those which
        # nothing reads are left out.
        empty = mlir.ir_constant(np.zeros(0, np.int32))
        of_none = [jax.core.ShapedArray((0,), np.dtype(np.int32))]
        out = []
        for k, aval in enumerate(ctx.avals_out):
            one = ctx.replace(avals_in=of_none, avals_out=[aval])
            out += rule(one, empty, attributes={ATTRIBUTE: f"0={of.digest}/{k}"}, of=of)
        return out

    mlir.register_lowering(static_arrays_p, lower, platform=platform)


_register(_native.CPU, "cpu")
_register(_native.CUDA, "cuda")
mlir.register_lowering(static_arrays_p, _native.fallback_lowering(_reference))


def by_name(ctx: Any, operands: Sequence[Any], names: Names) -> tuple[Any, list[Any], Any]:
    """Let a kernel find operands by their names, so that nothing is copied for it.

    Returns:
        The context and the operands of the call, with empty arrays in place of the named ones, and
        the attribute that says which they are.
    """
    if not names:
        return ctx, list(operands), {}
    empty = mlir.ir_constant(np.zeros(0, np.int32))
    aval = jax.core.ShapedArray((0,), np.dtype(np.int32))
    avals, given = list(ctx.avals_in), list(operands)
    for k, _ in names:
        avals[k], given[k] = aval, empty
    text = ";".join(f"{k}={name}" for k, name in names)
    return ctx.replace(avals_in=avals), given, {ATTRIBUTE: text}
