# SPDX-License-Identifier: Apache-2.0
"""Golden bits: digests of every op's results, written once on a CPU and equal on every device.

Inputs are made by integer hashing, so they depend on no random library. ``bits.json`` beside this
file holds the digests; the tests and ``python -m jax_index`` read it. A change of it is a change of
the promised bits: ``python -m jax_index.golden`` writes it anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index._graph import Graph
from jax_index._plan import IndexPlan, make_plan
from jax_index.ops import segments
from jax_index.ops.attention import edge_softmax, gat_attention, graph_attention
from jax_index.ops.convert import convert
from jax_index.ops.matmul import sddmm, spmm
from jax_index.ops.rows import gather, index_add, scatter_add

FILE = Path(__file__).parent / "bits.json"

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz")
OTHERS = ("int8", "int32", "uint16", "complex64")
PRODUCTS = ("spmm", "spmm.weights", "spmm.full", "sddmm")
SEGMENTS = ("sum", "mean", "max", "min", "prod", "var", "std", "softmax", "logsumexp")


def hashed(count: int, seed: int) -> np.ndarray:
    """Return `count` hashed 64-bit integers (the splitmix64 sequence of Steele, Lea and Flood)."""
    step, first, second = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(step)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(first)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(second)
    return z ^ (z >> np.uint64(31))


def values(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    """Return hashed numbers of `dtype`: floats over six binary decades, signed, a few subnormal."""
    count = int(np.prod(shape))
    bits = hashed(count, seed)
    kind = jnp.dtype(dtype)
    if jnp.issubdtype(kind, jnp.complexfloating):
        real, imaginary = (values(shape, "float32", seed + k) for k in (101, 202))
        return (real + 1j * imaginary).astype(kind)
    if jnp.issubdtype(kind, jnp.integer):
        return bits.astype(kind).reshape(shape)
    mantissa = (bits & np.uint64(0xFFFFFF)).astype(np.float64) / 2.0**24 + 1.0
    exponent = ((bits >> np.uint64(24)) % np.uint64(8)).astype(np.int32) - 6
    sign = np.where(bits >> np.uint64(63), -1.0, 1.0)
    out = np.ldexp(sign * mantissa, exponent)
    if kind == np.float32:
        # Below the normal range: kept by every kernel, flushed by XLA's own CPU code.
        out = np.where((bits >> np.uint64(40)) % np.uint64(50) == 0, np.ldexp(out, -140), out)
    return out.astype(np.float32).astype(kind).reshape(shape)


def plans() -> dict[str, IndexPlan]:
    """Return the index patterns: uniform, sorted, with hubs, and with dropped edges."""
    m, n = 6000, 150
    draw = hashed(m, 7)
    uniform = (draw % np.uint64(n)).astype(np.int32)
    # Rows of two, three and one levels: 1/2, 1/4, 1/8, … of the edges.
    zeros = np.array([int(d & np.uint64(0xFFF)) for d in draw >> np.uint64(32)])
    hubs = np.where(zeros < 2048, 3, np.where(zeros < 3072, 77, uniform)).astype(np.int32)
    dropped = np.where(draw % np.uint64(5) == 0, -1, uniform).astype(np.int32)
    return {
        "uniform": make_plan(uniform, n),
        "sorted": make_plan(np.sort(uniform), n),
        "hubs": make_plan(hubs, n),
        "dropped": make_plan(dropped, n, mode="drop"),
    }


Case = tuple[str, Callable[[], Any]]


def cases() -> Iterator[Case]:
    """Yield (name, function that computes the results) for the default device."""
    for pattern, plan in plans().items():
        for dtype in FLOATS + OTHERS:
            for shape in ((), (7,), (64,)):
                width = "x".join(map(str, shape)) or "scalar"
                if shape == () and dtype not in ("float32", "bfloat16"):
                    continue
                name = f"{pattern}/{dtype}/{width}"
                x = jnp.asarray(values((plan.num_rows, *shape), dtype, 11))
                y = jnp.asarray(values((plan.num_edges, *shape), dtype, 13))
                yield from _rows(name, x, y, plan)
    for source, target in (("int32", "float32"), ("float32", "bfloat16"), ("float32", "float16")):
        x = jnp.asarray(values((4096,), source, 17))
        yield f"convert/{source}/{target}", partial(convert, x, target)
    for pattern, plan in plans().items():
        narrow = {"uniform": ["float16"], "dropped": ["bfloat16"]}.get(pattern, [])
        for dtype in ("float32", *narrow):
            yield from _together(f"{pattern}/{dtype}", _segments(plan, dtype))
            yield from _together(f"{pattern}/{dtype}", _graphs(plan, dtype))
        products = {op: call for op, call in _graphs(plan, "complex64").items() if op in PRODUCTS}
        yield from _together(f"{pattern}/complex64", products)


# A function of arrays, and the arrays: its value, and the gradient with itself as the cotangent.
Call = tuple[Callable[..., Any], list[Any]]


def _together(name: str, calls: dict[str, Call]) -> Iterator[Case]:
    """Yield a case for each call; all are compiled as one program."""

    def run(arrays: dict[str, list[Any]]) -> dict[str, Any]:
        return {op: _with_gradient(fn, arrays[op]) for op, (fn, _) in calls.items()}

    compute = cache(lambda: jax.jit(run)({op: arrays for op, (_, arrays) in calls.items()}))
    for op in calls:
        yield f"{op}/{name}", lambda op=op: compute()[op]  # type: ignore[misc]


def _with_gradient(fn: Callable[..., Any], arrays: list[Any]) -> Any:
    out, back = jax.vjp(fn, *arrays)
    return out, back(out)


def _segments(plan: IndexPlan, dtype: str) -> dict[str, Call]:
    y = jnp.asarray(values((plan.num_edges, 5), dtype, 19))
    ops = {f"segment_{name}": getattr(segments, f"segment_{name}") for name in SEGMENTS}
    return {name: (partial(op, segment_ids=plan), [y]) for name, op in ops.items()}


def _graphs(plan: IndexPlan, dtype: str) -> dict[str, Call]:
    m, n, k = plan.num_edges, plan.num_rows, 90
    graph = Graph((hashed(m, 23) % np.uint64(k)).astype(np.int32), plan, num_senders=k)
    draw = lambda seed, *shape, kind=dtype: jnp.asarray(values(shape, kind, seed))  # noqa: E731
    q, x, v = draw(29, n, 2, 37), draw(31, k, 2, 37), draw(37, k, 2, 7)
    weights, bias = draw(41, m, 2), draw(43, m, kind="float32")

    def weighted(q: Any, x: Any, v: Any, b: Any, w: Any) -> Any:
        options: dict[str, Any] = {"normalize": "sum", "denominator_offset": 1.0}
        return graph_attention(graph, q, x, v, bias=b, weights=w, clip=(-4.0, 4.0), **options)

    return {
        "spmm": (partial(spmm, graph), [x]),
        "spmm.weights": (partial(spmm, graph), [v, weights]),
        "spmm.full": (partial(spmm, graph), [v, draw(47, m, 2, 7)]),
        "sddmm": (partial(sddmm, graph), [x, q]),
        "edge_softmax": (partial(edge_softmax, graph), [weights]),
        "attention": (partial(graph_attention, graph), [q, x, v]),
        "attention.sum": (weighted, [q, x, v, bias, weights]),
        "gat": (partial(gat_attention, graph), [v, draw(53, n, 2, 7), draw(59, 2, 2, 7)]),
        "gat2": (
            partial(gat_attention, graph, version=2),
            [v, draw(53, n, 2, 7), draw(61, 2, 7)],
        ),
    }


def _rows(name: str, x: Any, y: Any, plan: IndexPlan) -> Iterator[Case]:
    yield f"gather/{name}", lambda: gather(x, plan)
    yield f"scatter_add/{name}", lambda: scatter_add(y, plan)
    yield f"index_add/{name}", lambda: index_add(x, plan, y)
    if jnp.issubdtype(x.dtype, jnp.inexact):
        yield f"gather.grad/{name}", lambda: jax.vjp(lambda v: gather(v, plan), x)[1](y)
        yield f"scatter_add.grad/{name}", lambda: jax.vjp(lambda v: scatter_add(v, plan), y)[1](x)


def digest(results: Any) -> str:
    """Digest arrays bit by bit; every NaN counts as the same one."""
    head = hashlib.sha256()
    for leaf in jax.tree.leaves(results):
        array = np.asarray(leaf)
        head.update(f"{array.dtype.name}{array.shape}".encode())
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            array = array.view(array.real.dtype)
        if jnp.issubdtype(array.dtype, jnp.floating):
            nan = np.isnan(array.astype(np.float32))
            array = np.where(nan, np.zeros((), array.dtype), array)
            head.update(np.packbits(nan).tobytes())
        head.update(np.ascontiguousarray(array).tobytes())
    return head.hexdigest()[:32]


def compute(device: jax.Device | None = None) -> dict[str, str]:
    """Return the digest of every case, computed on `device` (the default one if None)."""
    with jax.default_device(device):
        return {name: digest(run()) for name, run in cases()}


def check(device: jax.Device | None = None) -> list[str]:
    """Return the names of the cases whose bits on `device` are not the golden ones."""
    golden = json.loads(FILE.read_text())["digests"]
    found = compute(device)
    return sorted(
        name for name in golden.keys() | found.keys() if golden.get(name) != found.get(name)
    )


def write() -> int:
    """Write the golden file from this machine's CPU and return the number of cases."""
    digests = compute(jax.devices("cpu")[0])
    FILE.write_text(json.dumps({"digests": digests}, indent=1, sort_keys=True) + "\n")
    return len(digests)
