# SPDX-License-Identifier: Apache-2.0
"""The ops in NumPy, written from the documented order and from nothing else.

A row's edges in stable order are cut into chunks of 32, each folded left to right from +0; the
chunk results are cut and folded in the same way, level by level, up to one. Floats of fewer than 32
bits are summed in float32 and rounded once.
"""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

CHUNK = 32


def is_narrow(dtype):
    """Whether values of `dtype` are summed in float32."""
    return jnp.issubdtype(dtype, np.floating) and ml_dtypes.finfo(dtype).bits < 32


def widen(y):
    """Values in the type that they are summed in."""
    return y.astype(np.float32) if is_narrow(y.dtype) else y


def rows_of(ids, num_rows):
    """The edges that belong to rows, by row and in stable order, and the lengths of the rows."""
    ids = np.asarray(ids).astype(np.int64)
    kept = np.flatnonzero((ids >= 0) & (ids < num_rows))
    order = kept[np.argsort(ids[kept], kind="stable")]
    return order, np.bincount(ids[kept], minlength=num_rows)[:num_rows]


def fold(lengths, step, start, combine=np.add):
    """Fold rows: step(total, positions) inside of a chunk of 32, then `combine` of chunk results.

    `start` has the shape and dtype of one element of a row: every chunk begins with it.
    """
    lengths = np.asarray(lengths, np.int64)
    items = None
    while items is None or lengths.max(initial=0) > 1:
        starts = np.cumsum(lengths) - lengths
        chunks = -(-lengths // CHUNK)
        row = np.repeat(np.arange(lengths.size), chunks)
        place = np.arange(row.size) - np.repeat(np.cumsum(chunks) - chunks, chunks)
        begin = starts[row] + CHUNK * place
        size = np.minimum(CHUNK, lengths[row] - CHUNK * place)
        total = np.broadcast_to(start, (row.size, *start.shape)).copy()
        with np.errstate(all="ignore"):
            for j in range(size.max(initial=0)):
                some = np.flatnonzero(size > j)
                at = begin[some] + j
                total[some] = (
                    step(total[some], at) if items is None else combine(total[some], items[at])
                )
        items, lengths = total, chunks
    out = np.broadcast_to(start, (lengths.size, *start.shape)).copy()
    out[lengths == 1] = items
    return out


def row_sums(y, ids, num_rows):
    """Row sums in the accumulator type, and the number of edges of each row."""
    y = np.asarray(y)
    order, lengths = rows_of(ids, num_rows)
    small = y.dtype.name in ("int2", "uint2", "int4", "uint4")
    items = (y.astype(np.int64) if small else widen(y))[order]
    start = np.zeros(items.shape[1:], items.dtype)
    return fold(lengths, lambda total, at: total + items[at], start), lengths


def narrow(value, dtype):
    """Round from the accumulator type, once; integers wrap."""
    if np.dtype(dtype).name in ("int2", "uint2", "int4", "uint4"):
        bits = ml_dtypes.iinfo(dtype).bits
        value = np.asarray(value) & ((1 << bits) - 1)
        if ml_dtypes.iinfo(dtype).min < 0:
            value = np.where(value >= 1 << (bits - 1), value - (1 << bits), value)
        return value.astype(np.int8).astype(dtype)
    with np.errstate(all="ignore"):
        return np.asarray(value).astype(dtype)


def scatter_add(y, ids, num_rows, axis=0):
    """out[i] = sum of y[e] over the edges e with ids[e] = i."""
    y = np.moveaxis(np.asarray(y), axis, 0)
    total, _ = row_sums(y, ids, num_rows)
    return np.moveaxis(narrow(total, y.dtype), 0, axis)


def gather(x, ids, axis=0, fill=0):
    """out[e] = x[ids[e]], or `fill` where the id names no row."""
    x = np.moveaxis(np.asarray(x), axis, 0)
    ids = np.asarray(ids).astype(np.int64)
    inside = (ids >= 0) & (ids < x.shape[0])
    out = np.full((ids.size, *x.shape[1:]), np.asarray(fill).astype(x.dtype))
    out[inside] = x[ids[inside]]
    return np.moveaxis(out, 0, axis)


def index_add(x, y, ids, axis=0):
    """x + row sums, added in the accumulator type and rounded once; x's bits where no edge is."""
    x = np.moveaxis(np.asarray(x), axis, 0)
    y = np.moveaxis(np.asarray(y), axis, 0)
    total, lengths = row_sums(y, ids, x.shape[0])
    with np.errstate(all="ignore"):
        wide = x.astype(total.dtype) if is_narrow(x.dtype) or x.dtype.itemsize == 1 else x
        out = narrow(wide + total, x.dtype)
    out[lengths == 0] = x[lengths == 0]
    return np.moveaxis(out, 0, axis)


def bits(value):
    """The bits of an array as unsigned integers, with every NaN replaced by one pattern."""
    value = np.asarray(value).reshape(-1)
    if value.dtype.kind == "c":
        value = value.view(value.real.dtype)
    if value.dtype.name in ("int2", "uint2", "int4", "uint4"):
        return value.astype(np.int8)
    out = value.view(f"u{value.dtype.itemsize}")
    if jnp.issubdtype(value.dtype, np.floating):
        out = np.where(np.isnan(value), np.full((), -1).astype(out.dtype), out)
    return out


def assert_same(actual, expected, what=""):
    """Equal dtype, shape and bits; NaN counts as NaN."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    np.testing.assert_array_equal(bits(actual), bits(expected), err_msg=what)


def x64(on=True):
    """A context with 64-bit types switched on."""
    switch = getattr(jax, "enable_x64", None)
    if switch is None:
        from jax.experimental import enable_x64 as switch
    return switch(on)


def x64_for(dtype):
    """A context in which `dtype` exists."""
    wide = np.dtype(dtype).name in ("float64", "int64", "uint64", "complex128")
    return x64() if wide else contextlib.nullcontext()
