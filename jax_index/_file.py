# SPDX-License-Identifier: Apache-2.0
"""Files of plans and graphs: ids, sizes, flags and a digest in NumPy's npz format."""

from __future__ import annotations

from typing import Any

import numpy as np

from jax_index import _check

VERSION = 1


def write(path: Any, kind: str, content: dict[str, Any]) -> None:
    """Write `content` under exactly this path; NumPy alone would append a suffix."""
    with open(path, "wb") as file:
        np.savez(file, format=kind, version=np.int64(VERSION), **content)


def read(
    op: str, path: Any, kind: str, ids: tuple[str, ...], sizes: tuple[str, ...], num_flags: int
) -> dict[str, Any]:
    """Return what a file holds: int32 arrays, sizes in range, a list of flags, and the digest.

    Nothing of it is believed: ids may name no row, and the digest may be that of something else.
    """
    fields: dict[str, tuple[str, tuple[int, ...] | None]] = {
        **dict.fromkeys(ids, ("<i4", None)),
        **dict.fromkeys(sizes, ("<i8", ())),
        "flags": ("|b1", (num_flags,)),
        "digest": ("<U32", ()),
    }
    expected, fix = f"a file that {kind}.save wrote", "Save it anew."
    found: dict[str, Any] = {}
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as content:
                head = content["format"].item(), content["version"].item()
                if head == (kind, VERSION):
                    found = {name: content[name] for name in fields}
        except Exception as error:  # a damaged file fails in many ways
            given = f"one that cannot be read ({type(error).__name__}: {error})"
            _check.fail(ValueError, op, "path", expected, given, fix)
    if head[0] != kind:
        _check.fail(ValueError, op, "path", expected, f"one of format {head[0]!r}", fix)
    if head[1] != VERSION:
        fix = "Read it with the jax_index that wrote it, or save it anew."
        expected = f"a file of version {VERSION}"
        _check.fail(ValueError, op, "path", expected, f"version {head[1]!r}", fix)
    for name, (dtype, shape) in fields.items():
        value = found[name]
        if value.dtype.str != dtype or (value.ndim != 1 if shape is None else value.shape != shape):
            given = f"one whose {name} are {_check.describe(value)}"
            _check.fail(ValueError, op, "path", expected, given, fix)
    return {
        **found,
        **{name: _check.size(op, name, found[name].item()) for name in sizes},
        "flags": found["flags"].tolist(),
    }


def check_digest(op: str, kind: str, found: dict[str, Any], digest: str) -> None:
    """Compare the digest of what was read with the one in the file."""
    if found["digest"] != digest:
        expected = f"a file that {kind}.save wrote"
        _check.fail(ValueError, op, "path", expected, "one whose digest differs", "Save it anew.")
