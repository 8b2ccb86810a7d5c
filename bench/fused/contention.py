# SPDX-License-Identifier: Apache-2.0
"""Peers that combine edges of a row one by one: seconds a call where a row is long.

Maxima, and sums of narrow floats, are compare-and-swap loops on GPUs; their time grows with the
edges that share a row. A small part of the edges tells what all of them would take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

from bench.fused.inputs import Inputs
from bench.kernels.peer import Skip
from bench.kernels.peers_jax import CONTENDED_ROW, FLOAT32_LOOPS

PART = 64  # of the edges, one in so many is tried first
PATIENCE = 1.0  # seconds that a call may take
MAXIMA = ("edge_softmax", "graph_attention", "segment_max", "segment_softmax")


def refuse_contended(inputs: Inputs, prepare_part: Callable[[int], Callable[[], Any]]) -> None:
    """Skip what would take too long a call.

    prepare_part(number of edges) -> a call of the peer on the first edges, which waits for it.
    """
    longest = inputs.ends.receivers.longest_row
    loops = inputs.line.op.startswith(MAXIMA) or FLOAT32_LOOPS
    loops = loops or inputs.line.dtype in ("bfloat16", "float16")
    if jax.default_backend() != "gpu" or longest <= CONTENDED_ROW or not loops:
        return
    call = prepare_part(inputs.ends.receivers.num_edges // PART)
    call()
    start = time.perf_counter()
    call()
    likely = (time.perf_counter() - start) * PART
    if likely > PATIENCE:
        raise Skip(f"about {likely:.1f} s a call, for {longest:,} edges share a row")
