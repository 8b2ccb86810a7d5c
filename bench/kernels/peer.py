# SPDX-License-Identifier: Apache-2.0
"""What every implementation that a line is measured with provides."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from bench.kernels.timing import JaxCalls, Timing


class Skip(Exception):  # noqa: N818 - a reason, not an error
    """Why a peer does not run a line."""


@dataclasses.dataclass
class Prepared:
    """First result and the timing of more; for JAX also the timed calls and the op itself.

    facts: more for the record.
    """

    result: Any
    time: Callable[[float], Timing]
    calls: JaxCalls | None = None
    fn: Callable[..., Any] | None = None
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Peer:
    """title in tables; prepare(inputs, name of the program) -> Prepared."""

    name: str
    title: str
    prepare: Callable[[Any, str], Prepared]
