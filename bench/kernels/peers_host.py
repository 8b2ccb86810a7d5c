# SPDX-License-Identifier: Apache-2.0
"""Peers of the CPU: NumPy's take into a reused buffer, SciPy's CSR product; one thread each."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bench.kernels.line import Inputs
from bench.kernels.peer import Peer, Prepared, Skip
from bench.kernels.timing import time_calls


def _on_cpu_only() -> None:
    if jax.default_backend() != "cpu":
        raise Skip("a peer of the CPU")


def _numpy_take(inputs: Inputs, name: str) -> Prepared:
    del name
    _on_cpu_only()
    if inputs.line.moves != "gather":
        raise Skip("NumPy's take is a gather")
    x, ids = inputs.host_operand(), inputs.topology.ids
    out = np.empty(inputs.result_shape, x.dtype)

    def call() -> None:
        np.take(x, ids, axis=0, out=out, mode="clip")  # "raise" would copy once more

    call()
    return Prepared(jax.numpy.asarray(out), lambda s: time_calls(call, lambda: None, s))


def _scipy_csr(inputs: Inputs, name: str) -> Prepared:
    del name
    _on_cpu_only()
    line, t = inputs.line, inputs.topology
    if line.moves != "scatter":
        raise Skip("the CSR product is a row sum")
    if line.dtype not in ("float32", "float64"):
        raise Skip(f"SciPy has no {line.dtype}")
    try:
        from scipy.sparse import csr_array
    except ImportError as error:
        raise Skip(str(error)) from error
    y = inputs.host_operand()
    indptr = np.concatenate([[0], np.cumsum(t.degrees)]).astype(np.int32)
    perm = np.asarray(inputs.plan.perm)
    ones = np.ones(t.num_edges, y.dtype)
    matrix = csr_array((ones, perm, indptr), shape=(t.num_rows, t.num_edges))
    last: list[Any] = [matrix @ y]

    def call() -> None:
        last[0] = matrix @ y

    return Prepared(jax.numpy.asarray(last[0]), lambda s: time_calls(call, lambda: None, s))


PEERS = (Peer("numpy", "NumPy take", _numpy_take), Peer("scipy", "SciPy CSR", _scipy_csr))
