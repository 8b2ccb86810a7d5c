# SPDX-License-Identifier: Apache-2.0
"""torch: index_select, index_add, its deterministic mode, segment_reduce.

On a GPU small shapes are timed as replays of a CUDA graph of many calls, others by events.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import numpy as np

from bench.kernels.line import Inputs
from bench.kernels.peer import Peer, Prepared, Skip
from bench.kernels.timing import REPEATS, Timing, time_calls

GRAPH_CALLS = 24
GRAPH_BELOW = 300e-6  # seconds a call
SLOW = 0.3  # seconds: such calls are made twice, and the second one counts


@cache
def torch_module() -> Any:
    """The torch module, where it works with JAX's device."""
    try:
        import torch
    except ImportError as error:
        raise Skip(f"torch: {error}") from error
    if jax.default_backend() == "gpu" and not torch.cuda.is_available():
        raise Skip("this torch sees no GPU")
    return torch


def torch_device() -> str:
    """JAX's default device in torch's words."""
    return "cuda" if jax.default_backend() == "gpu" else "cpu"


def _tensors(inputs: Inputs) -> tuple[Any, Any, Any]:
    """Operand, int64 ids and an output, in torch; the operand shares memory with JAX."""
    torch = torch_module()
    if inputs.line.op.endswith("gradient"):
        raise Skip("moves as the other op's forward pass; see there")
    operand = torch.from_dlpack(inputs.operands[0])
    ids = torch.as_tensor(inputs.topology.ids, dtype=torch.int64).to(torch_device())
    out = torch.zeros(inputs.result_shape, dtype=operand.dtype, device=torch_device())
    return operand, ids, out


def prepared(call: Callable[[], Any], out: Callable[[], Any], capture: bool = True) -> Prepared:
    """Call once, and time more calls; `out` gives the last result, a tensor or a tuple of them.

    capture: whether short calls may be recorded as a CUDA graph.
    """
    torch = torch_module()
    on_gpu = torch_device() == "cuda"
    slow = _first_call(call) if on_gpu else None
    if not on_gpu:
        call()
    result = out()
    parts = [part.detach().clone() for part in (result if isinstance(result, tuple) else [result])]
    if on_gpu:
        torch.cuda.synchronize()
        arrays = [jax.dlpack.from_dlpack(part) for part in parts]
    else:
        arrays = [jax.numpy.asarray(jax.dlpack.from_dlpack(part)) for part in parts]
    first = tuple(arrays) if isinstance(result, tuple) else arrays[0]
    if slow is not None:
        return Prepared(first, lambda seconds: Timing(slow, 0.0, 1, "one call"))
    if on_gpu:
        return Prepared(first, lambda seconds: _time_cuda(call, seconds, capture))
    return Prepared(first, lambda seconds: time_calls(call, lambda: None, seconds))


def _first_call(call: Callable[[], Any]) -> float | None:
    """Call; seconds of a second call where the first is slow for another reason than loading."""
    torch = torch_module()
    for _ in range(2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        took = time.perf_counter() - start
        if took < SLOW:
            return None
    return took


def _time_cuda(call: Callable[[], Any], seconds: float, capture: bool) -> Timing:
    torch = torch_module()
    one = _events(call, 1, 2)[0]
    if one > seconds:
        return Timing(one, 0.0, 1, "events")
    if one < GRAPH_BELOW and capture:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(GRAPH_CALLS):
                    call()
            replays = max(1, int(seconds / REPEATS / max(one, 1e-6) / GRAPH_CALLS / 4))
            times = [t / GRAPH_CALLS for t in _events(graph.replay, replays, REPEATS)]
            return _timing(times, replays * GRAPH_CALLS, "graph replay")
        except RuntimeError:
            torch.cuda.synchronize()  # cannot be captured: time it as it is
    calls = max(1, int(seconds / REPEATS / max(one, 1e-6)))
    return _timing(_events(call, calls, REPEATS), calls, "events")


def _timing(times: list[float], calls: int, method: str) -> Timing:
    median = statistics.median(times)
    return Timing(median, (max(times) - min(times)) / median, calls * len(times), method)


def _events(call: Callable[[], Any], calls: int, repeats: int) -> list[float]:
    """Seconds a call, for each of `repeats` runs between two events."""
    torch = torch_module()
    call()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            call()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e-3 / calls)
    return times


def _index_select(inputs: Inputs, name: str) -> Prepared:
    del name
    torch = torch_module()
    if inputs.line.moves != "gather":
        raise Skip("index_select is a gather")
    x, ids, out = _tensors(inputs)
    return prepared(lambda: torch.index_select(x, 0, ids, out=out), lambda: out)


def _index_add(inputs: Inputs, name: str) -> Prepared:
    del name
    if inputs.line.moves != "scatter":
        raise Skip("index_add is a row sum")
    y, ids, out = _tensors(inputs)
    if y.dtype.itemsize == 2 and inputs.topology.longest_row > 100_000:
        raise Skip("16-bit atomics on one row: seconds a call")
    return prepared(lambda: out.zero_().index_add_(0, ids, y), lambda: out)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch = torch_module()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _index_add_deterministic(inputs: Inputs, name: str) -> Prepared:
    del name
    if inputs.line.moves != "scatter":
        raise Skip("index_add is a row sum")
    if torch_device() == "cpu":
        raise Skip("on a CPU index_add is deterministic as it is")
    y, ids, out = _tensors(inputs)

    def call() -> None:
        with _deterministic():
            out.zero_().index_add_(0, ids, y)

    return prepared(call, lambda: out)


def _segment_reduce(inputs: Inputs, name: str) -> Prepared:
    del name
    torch, t = torch_module(), inputs.topology
    if inputs.line.moves != "scatter":
        raise Skip("segment_reduce is a row sum")
    if not t.is_sorted:
        raise Skip("segment_reduce needs sorted ids")
    if inputs.line.dtype not in ("float32", "float64"):
        raise Skip("measured in float32 and float64")
    y, _, out = _tensors(inputs)
    lengths = torch.as_tensor(t.degrees.astype(np.int64)).to(torch_device())
    last = [out]

    def call() -> None:
        last[0] = torch.segment_reduce(y, "sum", lengths=lengths, axis=0, unsafe=True, initial=0.0)

    return prepared(call, lambda: last[0])


PEERS = (
    Peer("torch-select", "torch index_select", _index_select),
    Peer("torch-add", "torch index_add", _index_add),
    Peer("torch-deterministic", "torch deterministic", _index_add_deterministic),
    Peer("torch-segment", "torch segment_reduce", _segment_reduce),
)
