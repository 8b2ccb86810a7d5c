# SPDX-License-Identifier: Apache-2.0
"""Index patterns, generated from a seed: the kind ones and those that break other libraries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from bench.kernels.topology import Topology

HUB_SHARE = 0.11  # of the edges, in the first row of a hub pattern
BAND = 64  # local ids stay so close to the diagonal

Make = Callable[[int, int, np.random.Generator], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Pattern:
    """make(num_rows, num_edges, rng) -> ids; rows(n, m) is the number of rows it really has."""

    title: str
    make: Make
    rows: Callable[[int, int], int] = lambda n, m: n


def _uniform(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, n, m, dtype=np.int32)


def _local(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    diagonal = np.arange(m, dtype=np.int64) * n // max(m, 1)
    return np.clip(diagonal + rng.integers(-BAND, BAND + 1, m), 0, n - 1).astype(np.int32)


def hub_shares(n: int) -> np.ndarray:
    """Shares of n rows under the power law k^-a whose first row has HUB_SHARE (1/n if fewer)."""
    if n * HUB_SHARE <= 1:
        return np.full(n, 1 / n)
    rank = np.log(np.arange(1, n + 1))
    low, high = 0.0, 8.0
    for _ in range(60):
        a = (low + high) / 2
        low, high = (a, high) if np.exp(-a * rank).sum() > 1 / HUB_SHARE else (low, a)
    shares = np.exp(-low * rank)
    return shares / shares.sum()


def _hub_sorted(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    return np.repeat(np.arange(n, dtype=np.int32), rng.multinomial(m, hub_shares(n)))


def _hub(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    ids = _hub_sorted(n, m, rng)
    rng.shuffle(ids)
    return ids


def _half(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    ids = _uniform(n, m, rng)
    ids[rng.random(m) < 0.5] = 0
    return ids


def _sorted(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    return np.repeat(np.arange(n, dtype=np.int32), rng.multinomial(m, np.full(n, 1 / n)))


def _one_row(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    del n, rng
    return np.zeros(m, np.int32)


def _all_but_one_empty(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    del rng
    return np.full(m, n // 2, np.int32)


def _one_edge_per_row(n: int, m: int, rng: np.random.Generator) -> np.ndarray:
    del n
    return rng.permutation(m).astype(np.int32)


def _few(count: int, make: Make) -> Pattern:
    order = "sorted" if make is _sorted else "random"
    return Pattern(f"{count} rows, {order}", make, rows=lambda n, m: count)


PATTERNS: dict[str, Pattern] = {
    "uniform": Pattern("uniform", _uniform),
    "local": Pattern("local", _local),
    "hub": Pattern("hub", _hub),
    "sorted": Pattern("sorted", _sorted),
    "hub-sorted": Pattern("hub, sorted", _hub_sorted),
    "half": Pattern("half in one row", _half),
    "one-row": Pattern("one row", _one_row, rows=lambda n, m: 1),
    "all-but-one-empty": Pattern("all rows empty but one", _all_but_one_empty),
    "one-edge-per-row": Pattern("one edge per row", _one_edge_per_row, rows=lambda n, m: m),
    "few-64": _few(64, _uniform),
    "few-64-sorted": _few(64, _sorted),
    "few-1024": _few(1024, _uniform),
    "few-1024-sorted": _few(1024, _sorted),
}


def generate(name: str, num_rows: int, num_edges: int, seed: int = 0) -> Topology:
    """The named pattern; equal arguments give equal ids."""
    pattern = PATTERNS[name]
    n = pattern.rows(num_rows, num_edges)
    rng = np.random.default_rng([seed, num_rows, num_edges, *name.encode()])
    return Topology(name, pattern.make(n, num_edges, rng), n)
