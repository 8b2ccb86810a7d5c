# SPDX-License-Identifier: Apache-2.0
"""GPU ceilings through CuPy (16-byte accesses, random rows out of a small table) and torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.kernels.ceilings import CACHE_TABLES, GPU_BYTES, Candidate

ROW = 256  # bytes of the random rows
SOURCE = r"""
extern "C" __global__ void read16(const float4* x, long long count, float* out) {
  float total = 0.f;
  const long long step = (long long)gridDim.x * blockDim.x;
  long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    float4 a = x[i], b = x[i + step], c = x[i + 2 * step], d = x[i + 3 * step];
    total += (a.x + a.y + a.z + a.w) + (b.x + b.y + b.z + b.w)
           + (c.x + c.y + c.z + c.w) + (d.x + d.y + d.z + d.w);
  }
  for (; i < count; i += step) total += x[i].x;
  if (total == -1.25f) out[0] = total;
}
extern "C" __global__ void write16(float4* x, long long count, float v) {
  const long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    x[i] = make_float4(v, v, v, v);
}
extern "C" __global__ void rows16(const float4* x, const int* ids, long long m, float* out) {
  float total = 0.f;
  const int lane = threadIdx.x % 16;
  const long long step = (long long)gridDim.x * blockDim.x / 16;
  long long e = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 16;
  for (; e + 3 * step < m; e += 4 * step) {
    float4 a = x[(long long)ids[e] * 16 + lane], b = x[(long long)ids[e + step] * 16 + lane];
    float4 c = x[(long long)ids[e + 2 * step] * 16 + lane];
    float4 d = x[(long long)ids[e + 3 * step] * 16 + lane];
    total += (a.x + a.y + a.z + a.w) + (b.x + b.y + b.z + b.w)
           + (c.x + c.y + c.z + c.w) + (d.x + d.y + d.z + d.w);
  }
  if (total == -1.25f) out[0] = total;
}
"""


def _median(event: Callable[[], Any], elapsed: Callable[[Any, Any], float], run: Any) -> float:
    """Median seconds of `run` between two events, after a warm-up."""
    run()
    times = []
    for _ in range(9):
        start, stop = event(), event()
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(elapsed(start, stop) * 1e-3)
    return statistics.median(times)


def cupy_candidates() -> list[Candidate]:
    """What CuPy's own kernels reach; their memory is given back."""
    import cupy

    try:
        return _cupy()
    finally:
        cupy.get_default_memory_pool().free_all_blocks()


def _cupy() -> list[Candidate]:
    """Read, write, copy, and random 256-byte rows out of each table of CACHE_TABLES."""
    import cupy

    module = cupy.RawModule(code=SOURCE)
    read, write, rows = (module.get_function(k) for k in ("read16", "write16", "rows16"))
    blocks = cupy.cuda.Device().attributes["MultiProcessorCount"] * 8
    a, b = (cupy.ones(GPU_BYTES // 4, cupy.float32) for _ in range(2))
    out = cupy.zeros(1, cupy.float32)
    count = np.int64(GPU_BYTES // 16)

    def seconds(run: Callable[[], Any]) -> float:
        return _median(cupy.cuda.Event, cupy.cuda.get_elapsed_time, run)

    def copy() -> None:
        cupy.cuda.runtime.memcpyAsync(
            b.data.ptr, a.data.ptr, a.nbytes, 3, cupy.cuda.get_current_stream().ptr
        )

    def load() -> None:
        read((blocks,), (256,), (a, count, out))

    def store() -> None:
        write((blocks,), (256,), (b, count, np.float32(2)))

    found = [
        ("read", "16-byte loads", GPU_BYTES / seconds(load)),
        ("write", "16-byte stores", GPU_BYTES / seconds(store)),
        ("write", "memset", GPU_BYTES / seconds(lambda: b.data.memset_async(0, b.nbytes))),
        ("copy", "memcpy", 2 * GPU_BYTES / seconds(copy)),
    ]
    m = GPU_BYTES // ROW
    rng = np.random.default_rng(0)
    for table in CACHE_TABLES:
        ids = cupy.asarray(rng.integers(0, table // ROW, m, dtype=np.int32))
        took = seconds(lambda ids=ids: rows((blocks,), (256,), (a, ids, np.int64(m), out)))
        found.append((f"cache:{table}", "random 256-byte rows", m * ROW / took))
    return found


def torch_candidates() -> list[Candidate]:
    """Sum, fill and copy of torch; their memory is given back."""
    import torch

    try:
        return _torch()
    finally:
        torch.cuda.empty_cache()


def _torch() -> list[Candidate]:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    a, b = (torch.ones(GPU_BYTES // 4, device="cuda") for _ in range(2))

    def seconds(run: Callable[[], Any]) -> float:
        return _median(
            lambda: torch.cuda.Event(enable_timing=True), lambda s, t: s.elapsed_time(t), run
        )

    return [
        ("read", "torch sum", GPU_BYTES / seconds(lambda: a.sum())),
        ("write", "torch fill", GPU_BYTES / seconds(lambda: b.fill_(2.0))),
        ("copy", "torch copy", 2 * GPU_BYTES / seconds(lambda: b.copy_(a))),
    ]
