# SPDX-License-Identifier: Apache-2.0
"""Raw ids in place of a plan: a bounded, thread-safe cache of plans by content."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any

import jax
import numpy as np

from jax_index import _check, _ids, _plan, _static
from jax_index._plan import IndexPlan

DEFAULT_BYTES = 512 * 2**20
Key = tuple[bytes, int, str]


class PlanCache:
    """Plans of raw ids, least recently used first out, bounded in bytes of plan arrays.

    ids are looked up by content. A JAX array cannot change: its digest is remembered by identity,
    so that it is copied to the host once. The memory of the array is not kept.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES):
        self._lock = threading.RLock()
        self._plans: OrderedDict[Key, IndexPlan] = OrderedDict()
        self._digests: dict[int, tuple[weakref.ref[Any], bytes]] = {}
        self.max_bytes = max_bytes
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._plans)

    def clear(self) -> None:
        """Forget every plan."""
        with self._lock:
            self._plans.clear()
            self.nbytes = 0

    def get(self, op: str, ids: Any, num_rows: int, mode: str, argument: str = "ids") -> IndexPlan:
        """Return the plan of `ids`, from the cache or built now; errors call them `argument`."""
        known = self._known_digest(ids)
        host = None
        if known is None:
            host = _ids.host_ids(op, ids, argument)
            known = self._remember(ids, _digest(host))
        key = (known, num_rows, mode)
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                return plan
        if host is not None and isinstance(ids, np.ndarray):
            # The caller may write to it meanwhile: what is sorted is what the key is of.
            host = host.copy()
            key = (_digest(host), num_rows, mode)
        plan = _plan.build(op, ids, num_rows, mode, host, argument)
        with self._lock:
            if key not in self._plans and plan.nbytes <= self.max_bytes:
                self._plans[key] = plan
                self.nbytes += plan.nbytes
                while self.nbytes > self.max_bytes:
                    self.nbytes -= self._plans.popitem(last=False)[1].nbytes
        return plan

    def _known_digest(self, ids: Any) -> bytes | None:
        if not isinstance(ids, jax.Array):
            return None
        entry = self._digests.get(id(ids))
        # An address may be used again: the weak reference says whether it is the same array.
        return entry[1] if entry is not None and entry[0]() is ids else None

    def _remember(self, ids: Any, digest: bytes) -> bytes:
        if isinstance(ids, jax.Array):
            address, digests = id(ids), self._digests

            def forget(reference: weakref.ref[Any]) -> None:
                entry = digests.get(address)
                if entry is not None and entry[0] is reference:
                    digests.pop(address, None)

            digests[address] = (weakref.ref(ids, forget), digest)
        return digest


def _digest(ids: np.ndarray) -> bytes:
    head = hashlib.blake2b(f"{ids.dtype.str}:{ids.size}:".encode(), digest_size=20)
    head.update(ids.view(np.uint8).data)
    return head.digest()


CACHE = PlanCache(int(os.environ.get("JAX_INDEX_CACHE_BYTES", DEFAULT_BYTES)))


def resolve(
    op: str, plan: Any, mode: str | None, num_rows: int | None, argument: str = "ids"
) -> IndexPlan:
    """Return the plan that an op's `plan` argument stands for.

    Args:
        op: the name that errors carry.
        plan: an IndexPlan, or raw ids (concrete: cached; traced: sorted on the device).
        mode: with a plan None; with ids None ("raise" for concrete, "drop" for traced ones),
            "raise" or "drop".
        num_rows: with a plan None or its own number; with ids the number of rows.
        argument: what errors call raw ids.
    """
    if isinstance(plan, IndexPlan):
        if mode is not None:
            fix = "The plan was made with a mode already."
            _check.fail(ValueError, op, "mode", "None with a plan", repr(mode), fix)
        if num_rows is not None and num_rows != plan.num_rows:
            fix = "Leave num_rows out, or use the plan made for it."
            expected = f"None or the plan's {plan.num_rows}"
            _check.fail(ValueError, op, "num_rows", expected, str(num_rows), fix)
        _plan.check_leaves(op, plan)
        return _static.settle(plan)
    traced = isinstance(plan, jax.core.Tracer)
    if isinstance(plan, list | tuple) and any(isinstance(i, jax.core.Tracer) for i in plan):
        fix = "Stack it first with jax.numpy.stack, or pass the ids as one array."
        _check.fail(TypeError, op, argument, "an integer array", "a list of traced scalars", fix)
    if num_rows is None:
        fix = "Pass num_rows=, or a plan."
        _check.fail(ValueError, op, "num_rows", "given with raw ids", "None", fix)
    num_rows = _check.size(op, "num_rows", num_rows)
    if mode is None:
        mode = "drop" if traced else "raise"
    if not isinstance(mode, str) or mode not in _plan.MODES:
        fix = "-1 never wraps; use 'drop' for padding."
        _check.fail(ValueError, op, "mode", "None, 'raise' or 'drop'", repr(mode), fix)
    if traced:
        return _plan.build(op, plan, num_rows, mode, argument=argument)
    return _static.settle(CACHE.get(op, plan, num_rows, mode, argument))
