# SPDX-License-Identifier: Apache-2.0
"""cuSPARSE's SpMM with a cached descriptor and, where the algorithm has one, preprocessing.

CuPy gives memory, events and the raw bindings; it has none for the preprocessing, which is called
in the library that it has loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from bench.fused.inputs import Inputs
from bench.kernels.peer import Peer, Prepared, Skip
from bench.kernels.timing import REPEATS, Timing

ALGORITHMS = {"ALG2": 6, "ALG3": 12}  # CUSPARSE_SPMM_CSR_ALG2 and _ALG3 of cusparse.h
PLAIN, ZERO_BASED, INT32, FLOAT32, ROW_MAJOR = 0, 0, 2, 0, 2  # other enumerators of its headers
GRAPH_CALLS = 24
GRAPH_BELOW = 300e-6  # seconds a call
SONAMES = ("libcusparse.so.12", "libcusparse.so.11", "libcusparse.so")


class Product:
    """out = matrix @ x for one CSR matrix, ready to run; everything it points to is kept."""

    def __init__(self, inputs: Inputs, algorithm: int):
        import cupy
        from cupy_backends.cuda.libs import cusparse

        x, *weights = inputs.operands[0]
        starts, senders, order = inputs.ends.csr
        values = np.asarray(weights[0])[order] if weights else np.ones(len(order), np.float32)
        n, width = x.shape
        self._cupy, self._library = cupy, cusparse
        self.out = cupy.zeros((n, width), cupy.float32)
        x = _shared(x)
        arrays = [cupy.asarray(array) for array in (starts, senders, values)]
        pointers = [array.data.ptr for array in arrays]
        self._handle = cupy.cuda.device.get_cusparse_handle()
        matrix = cusparse.createCsr(n, n, len(order), *pointers, INT32, INT32, ZERO_BASED, FLOAT32)
        dense = [
            cusparse.createDnMat(n, width, width, array.data.ptr, FLOAT32, ROW_MAJOR)
            for array in (x, self.out)
        ]
        scalars = [np.ones(1, np.float32), np.zeros(1, np.float32)]  # on the host, as is usual
        one, zero = (scalar.ctypes.data for scalar in scalars)
        operands = (PLAIN, PLAIN, one, matrix, dense[0], zero, dense[1], FLOAT32, algorithm)
        self._set_stream()
        size = cusparse.spMM_bufferSize(self._handle, *operands)
        buffer = cupy.empty(max(size, 1), cupy.uint8)
        self._arguments = (*operands, buffer.data.ptr)
        self._kept = (x, arrays, scalars, buffer)
        self.preprocessed = self._preprocess()

    def _set_stream(self) -> None:
        self._library.setStream(self._handle, self._cupy.cuda.get_current_stream().ptr)

    def _preprocess(self) -> bool:
        """Call cusparseSpMM_preprocess; False where it cannot be called."""
        function = _preprocess_function()
        if function is None:
            return False
        pointer = ctypes.c_void_p
        op_a, op_b, one, matrix, x, zero, out, dtype, algorithm, buffer = self._arguments
        status = function(
            pointer(self._handle), op_a, op_b, pointer(one), pointer(matrix), pointer(x),
            pointer(zero), pointer(out), dtype, algorithm, pointer(buffer),
        )  # fmt: skip
        return bool(status == 0)

    def __call__(self) -> None:
        """Start one product on CuPy's current stream."""
        self._set_stream()
        self._library.spMM(self._handle, *self._arguments)


def _shared(x: jax.Array) -> Any:
    """The array in CuPy, in the same memory if that can be had."""
    import cupy

    try:
        return cupy.from_dlpack(x)
    except Exception:
        return cupy.asarray(np.asarray(x))


def _preprocess_function() -> Callable[..., int] | None:
    for name in SONAMES:
        try:  # opened by this name already, it is the same library
            function = ctypes.CDLL(name).cusparseSpMM_preprocess
        except (OSError, AttributeError):
            continue
        function.restype = ctypes.c_int
        return function
    return None


def _events(call: Callable[[], Any], calls: int, repeats: int) -> list[float]:
    """Seconds a call, for each of `repeats` runs between two events."""
    import cupy

    call()
    times = []
    for _ in range(repeats):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for _ in range(calls):
            call()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) * 1e-3 / calls)
    return times


def _timing(times: list[float], calls: int, method: str) -> Timing:
    median = statistics.median(times)
    return Timing(median, (max(times) - min(times)) / median, calls * len(times), method)


def _time(product: Product, seconds: float) -> Timing:
    """By events; short products as replays of a CUDA graph of many."""
    import cupy

    one = _events(product, 1, 3)[-1]
    if one < GRAPH_BELOW:
        try:
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                stream.begin_capture()
                for _ in range(GRAPH_CALLS):
                    product()
                graph = stream.end_capture()
                replays = max(1, int(seconds / REPEATS / max(one, 1e-6) / GRAPH_CALLS))
                times = _events(lambda: graph.launch(stream), replays, REPEATS)
            per_call = [t / GRAPH_CALLS for t in times]
            return _timing(per_call, replays * GRAPH_CALLS, "graph replay")
        except Exception:  # cannot be captured: time it as it is
            with contextlib.suppress(Exception):
                cupy.cuda.Device().synchronize()
    calls = max(1, int(seconds / REPEATS / max(one, 1e-6)))
    return _timing(_events(product, calls, REPEATS), calls, "events")


def _prepare(algorithm: str, inputs: Inputs, name: str) -> Prepared:
    del name
    if jax.default_backend() != "gpu":
        raise Skip("a peer of GPUs")
    if inputs.line.op not in ("spmm", "spmm weighted"):
        raise Skip("SpMM is a product")
    if inputs.line.dtype != "float32":
        raise Skip("measured in float32")
    try:
        import cupy
    except ImportError as error:
        raise Skip(f"CuPy: {error}") from error
    cupy.get_default_memory_pool().free_all_blocks()
    jax.block_until_ready(inputs.operands[0])
    product = Product(inputs, ALGORITHMS[algorithm])
    product()
    cupy.cuda.get_current_stream().synchronize()
    result = jax.numpy.asarray(cupy.asnumpy(product.out))
    return Prepared(
        result,
        lambda seconds: _time(product, seconds),
        facts={"preprocessed": product.preprocessed},
    )


PEERS = tuple(
    Peer(f"cusparse-{name.lower()}", f"cuSPARSE {name}", partial(_prepare, name))
    for name in ALGORITHMS
)
