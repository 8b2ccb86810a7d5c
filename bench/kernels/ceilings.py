# SPDX-License-Identifier: Apache-2.0
"""Bandwidths of this machine, measured in the run that uses them: the best of several programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.kernels import profile
from bench.kernels.limits import Ceilings
from bench.kernels.timing import time_calls

GPU_BYTES = 2**31
CPU_BYTES = 2**28
CACHE_TABLES = (4 * 2**20, 32 * 2**20)  # on a GPU; per core on a CPU: CPU_CACHE
CPU_CACHE = 2**20

Candidate = tuple[str, str, float]  # what it measures, by which program, bytes per second


def measure_ceilings(on_gpu: bool, use_torch: bool = True) -> tuple[Ceilings, dict[str, Any]]:
    """Ceilings, and every measured candidate for the record."""
    found, failed = [], {}
    sources: list[tuple[str, Callable[[], list[Candidate]]]]
    if on_gpu:
        from bench.kernels import ceilings_cuda

        sources = [("xla", _xla_dispatched), ("xla kernels", _xla_kernels)]
        sources.append(("cupy", ceilings_cuda.cupy_candidates))
        if use_torch:
            sources.append(("torch", ceilings_cuda.torch_candidates))
    else:
        sources = [("numpy", _numpy)]
    for name, source in sources:
        try:
            found += source()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    best = {}
    for what in {what for what, _, _ in found}:
        best[what] = max(rate for kind, _, rate in found if kind == what)
    # A copy reads and writes half of its bytes each, so that either alone is no slower.
    for what in ("read", "write"):
        best[what] = max(best[what], best["copy"] / 2)
    cache = {int(k.split(":")[1]): rate for k, rate in best.items() if k.startswith("cache:")}
    ceilings = Ceilings(best["read"], best["write"], best["copy"], cache or {0: best["read"]})
    record: dict[str, Any] = {
        "read": ceilings.read,
        "write": ceilings.write,
        "copy": ceilings.copy,
        "cache": {str(size): rate for size, rate in sorted(ceilings.cache.items())},
        "candidates": [{"what": a, "program": b, "bytes_per_s": c} for a, b, c in sorted(found)],
        "failed": failed,
        "empty_call_us": _empty_call() * 1e6,
    }
    return ceilings, record


def _empty_call() -> float:
    """What a jitted call of a scalar costs: what lies below is not the kernel's."""
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    state = [step(jnp.zeros(()))]

    def call() -> None:
        state[0] = step(state[0])

    return time_calls(call, lambda: state[0].block_until_ready(), 0.1).seconds


class _Into:
    """A program that writes into its last result."""

    def __init__(self, program: Any, place: jax.Array, operand: jax.Array):
        self._program, self._place, self._operand = program, place, operand

    def __call__(self) -> None:
        self._place = self._program(self._place, self._operand)

    def wait(self) -> None:
        self._place.block_until_ready()


def _xla_programs() -> list[tuple[str, str, int, _Into]]:
    """Row maxima (reads), a constant into a reused buffer (writes), a scaled copy."""
    rows = GPU_BYTES // 4 // 8192
    a = jnp.ones((rows, 8192), jnp.float32)
    read = jax.jit(lambda top, a: jnp.max(a, axis=1), donate_argnums=0, keep_unused=True)
    write = jax.jit(lambda out, v: jnp.full_like(out, v), donate_argnums=0, keep_unused=True)
    copy = jax.jit(lambda out, a: a * 1.5, donate_argnums=0, keep_unused=True)
    return [
        ("read", "XLA row maximum", GPU_BYTES, _Into(read, jnp.zeros(rows, jnp.float32), a)),
        ("write", "XLA constant", GPU_BYTES, _Into(write, jnp.zeros_like(a), jnp.float32(2))),
        ("copy", "XLA scaled copy", 2 * GPU_BYTES, _Into(copy, jnp.zeros_like(a), a)),
    ]


def _xla_dispatched() -> list[Candidate]:
    """Call after call, with the gaps between them."""
    return [
        (what, f"{name}, dispatched", moved / time_calls(run, run.wait, 0.05).seconds)
        for what, name, moved, run in _xla_programs()
    ]


def _xla_kernels() -> list[Candidate]:
    """The kernels alone, as the lines are timed."""
    programs = _xla_programs()
    times = profile.kernel_times([run for *_, run in programs], [20] * len(programs))
    return [
        (what, name, moved / found.us * 1e6)
        for (what, name, moved, _), found in zip(programs, times, strict=True)
        if found is not None
    ]


def _numpy() -> list[Candidate]:
    """NumPy on every core: maximum, fill, copy, and a maximum that stays in each core's cache."""
    cores = len(os.sched_getaffinity(0))
    a = np.ones((cores, CPU_BYTES // 4 // cores), np.float32)
    b = np.ones_like(a)
    small = np.ones((cores, CPU_CACHE // 4), np.float32)

    def repeated(k: int) -> None:
        for _ in range(64):
            small[k].max()

    def filled(k: int) -> None:
        for part in np.split(b[k], 64):
            np.copyto(part, small[k, : part.size] if part.size <= small.shape[1] else 2.0)

    programs: list[tuple[str, str, int, Callable[[int], Any]]] = [
        ("read", "NumPy maximum", a.nbytes, lambda k: a[k].max()),
        ("read", "NumPy dot", a.nbytes, lambda k: np.dot(a[k], a[k])),
        ("write", "NumPy fill", b.nbytes, lambda k: b[k].fill(2.0)),
        ("write", "NumPy copy out of the cache", b.nbytes, filled),
        ("copy", "NumPy copy", 2 * a.nbytes, lambda k: np.copyto(b[k], a[k])),
        (f"cache:{CPU_CACHE}", "NumPy maximum in cache", 64 * small.nbytes, repeated),
    ]
    found = []
    with ThreadPoolExecutor(cores) as pool:
        for what, program, moved, work in programs:
            list(pool.map(work, range(cores)))
            times = []
            for _ in range(15):
                start = time.perf_counter()
                list(pool.map(work, range(cores)))
                times.append(time.perf_counter() - start)
            # The least time: a ceiling is what the machine can do, whoever else uses it.
            found.append((what, f"{program}, {cores} threads", moved / min(times)))
    return found
