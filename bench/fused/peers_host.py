# SPDX-License-Identifier: Apache-2.0
"""SciPy's CSR product, one thread, on a CPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bench.fused.inputs import Inputs
from bench.kernels.peer import Peer, Prepared, Skip
from bench.kernels.timing import time_calls


def _scipy_csr(inputs: Inputs, name: str) -> Prepared:
    del name
    if jax.default_backend() != "cpu":
        raise Skip("a peer of the CPU")
    line = inputs.line
    if line.op not in ("spmm", "spmm weighted"):
        raise Skip("SciPy has products alone")
    if line.dtype not in ("float32", "float64"):
        raise Skip(f"SciPy has no {line.dtype}")
    try:
        from scipy.sparse import csr_array
    except ImportError as error:
        raise Skip(str(error)) from error
    x, *weights = (np.asarray(operand) for operand in inputs.operands[0])
    starts, senders, order = inputs.ends.csr
    values = weights[0][order] if weights else np.ones(len(order), x.dtype)
    matrix = csr_array((values, senders, starts), shape=(inputs.num_rows, inputs.num_rows))
    last: list[Any] = [matrix @ x]

    def call() -> None:
        last[0] = matrix @ x

    return Prepared(jax.numpy.asarray(last[0]), lambda s: time_calls(call, lambda: None, s))


PEERS = (Peer("scipy", "SciPy CSR", _scipy_csr),)
