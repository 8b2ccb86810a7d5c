# SPDX-License-Identifier: Apache-2.0
"""What the segment reductions accept, as jax.ops does, and the plan that segment ids stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from jax_index import _cache, _check, _ids, _primitive, _sharding
from jax_index._plan import IndexPlan

MODES = "None, 'drop', 'fill', 'promise_in_bounds' or 'raise'"
DROPPING = (None, "drop", "fill", "fill_or_drop", "promise_in_bounds")
REFUSED = {
    "clip": "Clip the ids first: jnp.clip(segment_ids, 0, num_segments - 1).",
    "wrap": "Wrap the ids first: segment_ids % num_segments.",
}


def prepare(
    op: str, data: Any, segment_ids: Any, num_segments: Any, mode: Any, out_sharding: Any
) -> tuple[jax.Array, IndexPlan, Callable[[jax.Array], jax.Array]]:
    """Check the arguments of a segment reduction.

    Returns:
        data, the plan of its ids, and what gives the result the sharding that was asked for.
    """
    data = _check.array(op, "data", data)
    if data.ndim == 0:
        fix = "Reduce over at least one axis: data.reshape(1)."
        _check.fail(ValueError, op, "data", "an array of at least one axis", "a scalar", fix)
    sharding = _sharding.asked(op, out_sharding)
    plan = _resolve(op, segment_ids, num_segments, mode)
    fix = "Pass one segment id for each entry."
    _check.rows(op, "data", data, 0, plan.num_edges, "one for each segment id", fix)
    data, plan = _primitive.align_varying(data, plan)
    return data, plan, lambda out: _sharding.placed(op, out, sharding)


def _resolve(op: str, segment_ids: Any, num_segments: Any, mode: Any) -> IndexPlan:
    if isinstance(segment_ids, IndexPlan):
        if num_segments is not None:
            num_segments = _check.size(op, "num_segments", num_segments)
            if num_segments != segment_ids.num_rows:
                fix = "Leave num_segments out, or use the plan made for it."
                expected = f"None or the plan's {segment_ids.num_rows}"
                _check.fail(ValueError, op, "num_segments", expected, str(num_segments), fix)
        return _cache.resolve(op, segment_ids, mode, None)
    mode = _mode(op, mode)
    if num_segments is not None:
        num_segments = _check.size(op, "num_segments", num_segments)
    elif isinstance(segment_ids, jax.core.Tracer):
        fix = "The number of rows is part of the program: pass num_segments as a Python int."
        _check.fail(ValueError, op, "num_segments", "given with traced ids", "None", fix)
    else:
        ids = _ids.host_ids(op, segment_ids, "segment_ids")
        largest = int(ids.max()) if ids.size else -1
        num_segments = _check.size(op, "num_segments", max(largest + 1, 0))
    return _cache.resolve(op, segment_ids, mode, num_segments, "segment_ids")


def _mode(op: str, mode: Any) -> str:
    """Return "raise" or "drop" for a mode as jax.ops takes it: a string, an enum, or None."""
    name = getattr(mode, "name", mode)
    name = name.lower() if isinstance(name, str) else name
    if name == "raise":
        return "raise"
    if name is not None and (not isinstance(name, str) or name not in DROPPING):
        fix = "-1 never wraps; ids out of range belong to no segment."
        fix = REFUSED.get(name, fix) if isinstance(name, str) else fix
        _check.fail(ValueError, op, "mode", MODES, repr(mode), fix)
    return "drop"
