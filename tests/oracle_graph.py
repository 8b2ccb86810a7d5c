# SPDX-License-Identifier: Apache-2.0
"""Segment reductions, products and attention in NumPy, written from the documented order alone.

exp and log are given by the caller: their values are promised within one unit in the last place,
and what is computed with them to the bit.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from .oracle import fold, narrow, rows_of, widen

LANES = 32
SUB_BYTE = ("int2", "uint2", "int4", "uint4")


def fma(a, b, c):
    """a b + c, rounded once; integers wrap; of complex numbers twice for each part."""
    a, b, c = np.broadcast_arrays(a, b, c)
    if a.dtype.kind == "c":
        out = np.empty(a.shape, a.dtype)
        out.real = fma(-a.imag, b.imag, fma(a.real, b.real, c.real))
        out.imag = fma(a.imag, b.real, fma(a.real, b.imag, c.imag))
        return out
    if a.dtype.kind in "iu":
        return a * b + c
    with np.errstate(all="ignore"):
        return _fma32(a, b, c) if a.dtype == np.float32 else _fma64(a, b, c)


def _fma32(a, b, c):
    # The product is exact in float64; the sum is rounded to odd there, then to nearest.
    product, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    even = (np.ascontiguousarray(total).view(np.uint64) & np.uint64(1)) == 0
    inexact = np.isfinite(total) & (error != 0) & even
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(inexact, odd, total).astype(np.float32)


def _fma64(a, b, c):
    out = np.empty(a.shape, np.float64)
    for k in np.ndindex(a.shape):
        exact = all(np.isfinite(v[k]) for v in (a, b, c)) and a[k] * b[k] != 0
        total = (
            Fraction(*a[k].as_integer_ratio()) * Fraction(*b[k].as_integer_ratio())
            + Fraction(*c[k].as_integer_ratio())
            if exact
            else 0
        )
        out[k] = float(total) if exact and total else a[k] * b[k] + c[k]
    return out


def row_sums(values, ids, num_rows, step=None):
    """Sum rows; step(total, edges) in place of total + values[edges] where it is given."""
    order, lengths = rows_of(ids, num_rows)
    take = step or (lambda total, edges: total + values[edges])
    start = np.zeros(values.shape[1:], values.dtype)
    return fold(lengths, lambda total, at: take(total, order[at]), start)


def over_counts(total, ids, num_rows):
    """Divide rows by their numbers of edges, in the type of the rows."""
    count = np.maximum(rows_of(ids, num_rows)[1], 1).astype(total.dtype)
    return total / count.reshape(-1, *[1] * (total.ndim - 1))


def take(rows, ids, fill=0):
    """The row of each edge, `fill` where there is none."""
    ids = np.asarray(ids).astype(np.int64)
    there = (ids >= 0) & (ids < rows.shape[0])
    out = np.full((ids.size, *rows.shape[1:]), fill, rows.dtype)
    out[there] = rows[ids[there]]
    return out


# --- Segments -------------------------------------------------------------------------------------


def mean(x, ids, num_rows):
    return narrow(wide_mean(x, ids, num_rows), x.dtype)


def wide_mean(x, ids, num_rows):
    return over_counts(row_sums(widen(x), ids, num_rows), ids, num_rows)


def wide_var(x, ids, num_rows):
    wide = widen(x)
    with np.errstate(all="ignore"):
        d = wide - take(wide_mean(x, ids, num_rows), ids)
    total = row_sums(wide, ids, num_rows, lambda total, e: fma(d[e], d[e], total))
    return over_counts(total, ids, num_rows)


def var(x, ids, num_rows):
    return narrow(wide_var(x, ids, num_rows), x.dtype)


def std(x, ids, num_rows):
    return narrow(np.sqrt(wide_var(x, ids, num_rows)), x.dtype)


def var_grad(x, ids, num_rows, ct, root=False):
    """ct 2 (x - mean) / count, from left to right; for std ct is first divided by 2 std."""
    wide, ct = widen(x), widen(ct)
    with np.errstate(all="ignore"):
        if root:
            s = np.sqrt(wide_var(x, ids, num_rows))
            ct = np.where(s == 0, s.dtype.type(0), ct / (s + s))
        count = rows_of(ids, num_rows)[1].astype(wide.dtype).reshape(-1, *[1] * (x.ndim - 1))
        centred = wide - take(wide_mean(x, ids, num_rows), ids)
        out = take(ct, ids) * wide.dtype.type(2) * centred / take(count, ids, 1)
    out[(np.asarray(ids) < 0) | (np.asarray(ids) >= num_rows)] = 0
    return narrow(out, x.dtype)


def prod(x, ids, num_rows):
    order, lengths = rows_of(ids, num_rows)
    wide = x.astype(np.int64) if x.dtype.name in SUB_BYTE else widen(x)
    start = np.ones(x.shape[1:], wide.dtype)
    out = fold(lengths, lambda total, at: total * wide[order[at]], start, np.multiply)
    return narrow(out, x.dtype)


def others(x, ids, num_rows):
    """The product of the other edges of an edge's row: that of all, divided by the edge.

    Numbers are (value, exponent) with 1 <= |value| < 2, so that nothing leaves the range on its
    way; zeros, infinities and NaNs are counted.
    """
    kinds = [x == 0, np.isinf(x), np.isnan(x)]
    counts = [take(row_sums(kind.astype(np.int64), ids, num_rows), ids) - kind for kind in kinds]
    value, exponent = np.frexp(np.where(np.any(kinds, 0), np.copysign(x.dtype.type(1), x), x))
    # Both parts are exact in float64.
    numbers = np.stack([value * 2, exponent - 1], -1, dtype=np.float64)

    def times(a, b):
        product = (a[..., 0].astype(x.dtype) * b[..., 0].astype(x.dtype)).astype(np.float64)
        carry = np.abs(product) >= 2
        return np.stack([product / (1 + carry), a[..., 1] + b[..., 1] + carry], -1)

    order, lengths = rows_of(ids, num_rows)
    start = np.broadcast_to([1.0, 0.0], numbers.shape[1:])
    rows = fold(lengths, lambda total, at: times(total, numbers[order[at]]), start, times)
    whole = take(rows, ids, 1)
    with np.errstate(all="ignore"):
        quotient = whole[..., 0].astype(x.dtype) / numbers[..., 0].astype(x.dtype)
        away = np.clip(whole[..., 1] - numbers[..., 1], -9999, 9999).astype(np.int32)
        out = np.ldexp(quotient, away)
    zeros, infinities, nans = (count > 0 for count in counts)
    out = np.where(zeros, x.dtype.type(0), out)
    infinite = np.where(zeros, x.dtype.type(np.nan), np.copysign(x.dtype.type(np.inf), quotient))
    out = np.where(infinities, infinite, out)
    return np.where(nans, x.dtype.type(np.nan), out)


def extremum(x, ids, num_rows, smallest, empty):
    """NaN wins; of equal zeros the positive one in a maximum, the negative one in a minimum."""
    x = np.asarray(x)
    order, lengths = rows_of(ids, num_rows)
    out = np.full((num_rows, *x.shape[1:]), empty, x.dtype)
    starts = np.cumsum(lengths) - lengths
    for row in np.flatnonzero(lengths):
        items = x[order[starts[row] : starts[row] + lengths[row]]]
        best = items[0]
        for item in items[1:]:
            with np.errstate(all="ignore"):
                better = (item < best) if smallest else (item > best)
            if x.dtype.kind not in "iub":
                zeros = (item == best) & (np.signbit(item) == smallest)
                better = (better | zeros | np.isnan(item)) & ~np.isnan(best)
            best = np.where(better, item, best)
        out[row] = best
    return out


def ties(x, out, ids):
    """Whether each edge is its row's extremum; NaN is NaN."""
    own = take(np.asarray(out), ids, 1)
    same = (x == own) | (np.isnan(x) & np.isnan(own))
    inside = (np.asarray(ids) >= 0) & (np.asarray(ids) < out.shape[0])
    return same & inside.reshape(-1, *[1] * (x.ndim - 1))


# --- Products -------------------------------------------------------------------------------------


def behind(w, rank):
    """Per-edge values with the axes that they lack."""
    return w.reshape(w.shape + (1,) * (rank - w.ndim))


def spmm_wide(senders, receivers, num_receivers, x, w=None):
    """Row sums of fma(w, x, sum) in the accumulator type; a dropped edge is no edge."""
    receivers = np.where((senders >= 0) & (senders < x.shape[0]), receivers, -1)
    wide = widen(x)
    y = take(wide, senders)
    if w is None:
        return row_sums(y, receivers, num_receivers)
    w = behind(widen(w), x.ndim)
    step = lambda total, e: fma(w[e], y[e], total)  # noqa: E731
    return row_sums(y, receivers, num_receivers, step)


def spmm(senders, receivers, num_receivers, x, w=None):
    return narrow(spmm_wide(senders, receivers, num_receivers, x, w), x.dtype)


def dot(terms, step, dtype):
    """32 accumulators from +0 over the features of the last axis; then neighbours, five times."""
    lead, depth = terms[0].shape[:-1], terms[0].shape[-1]
    sums = np.zeros((*lead, LANES), dtype)
    for d in range(depth):
        lane = sums[..., d % LANES]
        sums[..., d % LANES] = step(*(t[..., d] for t in terms), lane)
    with np.errstate(all="ignore"):
        while sums.shape[-1] > 1:
            sums = sums[..., ::2] + sums[..., 1::2]
    return sums[..., 0]


def sddmm_wide(senders, receivers, x, y, depth_axes=1, step=fma, extra=()):
    """The dot of the ends of each edge over the last axes; 0 for a dropped edge."""
    there = (senders >= 0) & (senders < x.shape[0]) & (receivers >= 0) & (receivers < y.shape[0])
    ends = [take(widen(v), np.where(there, ids, -1)) for v, ids in ((x, senders), (y, receivers))]
    lead = ends[0].shape[: x.ndim - depth_axes]
    ends = [v.reshape(*lead, math.prod(x.shape[x.ndim - depth_axes :])) for v in ends]
    extra = [np.broadcast_to(widen(v), ends[0].shape) for v in extra]
    out = dot([*ends, *extra], step, ends[0].dtype)
    out[~there] = 0
    return out


def sddmm(senders, receivers, x, y, depth_axes=1):
    return narrow(sddmm_wide(senders, receivers, x, y, depth_axes), x.dtype)


# --- Attention ------------------------------------------------------------------------------------


class Attention:
    """Values and gradients of attention with given raw scores, [m, *batch, heads].

    `exp_below(s, m)` is exp(s - m), 0 where m is -inf; edges that are dropped have -1 at both ends.
    """

    def __init__(self, senders, receivers, num_receivers, raw, v, exp_below, **options):
        self.ends = senders, receivers
        self.num_receivers, self.v = num_receivers, v
        self.kind = raw.dtype.type
        self.there = behind(receivers >= 0, raw.ndim)
        self.scale = self.kind(options.get("scale", 1))
        self.given = {k: options.get(k) for k in ("score_weights", "bias", "weights")}
        self.multiplier, self.bias, self.factor = (
            w if w is None else np.broadcast_to(behind(widen(w), raw.ndim), raw.shape)
            for w in self.given.values()
        )
        self.raw = raw
        low, high = options.get("clip") or (-np.inf, np.inf)
        offset = self.kind(options.get("denominator_offset", 0))
        with np.errstate(all="ignore"):
            s = raw * self.scale
            s = s if self.multiplier is None else s * self.multiplier
            s = s if self.bias is None else s + self.bias
            self.inside = (s >= self.kind(low)) & (s <= self.kind(high))
            s = np.clip(s, self.kind(low), self.kind(high))
            largest = None
            if options.get("normalize", "softmax") == "softmax":
                largest = extremum(s, receivers, num_receivers, False, -np.inf)
            shift = np.zeros_like(s) if largest is None else take(largest, receivers)
            self.p = np.where(self.there, exp_below(s, shift), self.kind(0))
            z = row_sums(self.p, receivers, num_receivers)
            if offset and largest is None:
                z = z + offset
            elif offset:
                z = z + offset * exp_below(-largest, np.zeros_like(largest))
            self.z = z
            numerator = self.p if self.factor is None else self.factor * self.p
            total = spmm_wide(*self.ends, num_receivers, v, numerator)
            divisor = z[..., None]
            out = np.where(divisor == 0, self.kind(0), total / divisor)
            own = take(z, receivers)
            self.share = np.where(self.there & (own != 0), self.p / own, self.kind(0))
        self.out = narrow(out, v.dtype)

    def gradients(self, ct):
        """The cotangents of raw scores and v, and of the arrays that were given."""
        senders, receivers = self.ends
        delta = take(dot([widen(ct), widen(self.out)], fma, self.raw.dtype), receivers)
        dp = sddmm_wide(senders, receivers, self.v, ct)
        with np.errstate(all="ignore"):
            c_dp = dp if self.factor is None else self.factor * dp
            ds = np.where(self.inside & self.there, self.share * (c_dp - delta), self.kind(0))
            t = ds if self.multiplier is None else ds * self.multiplier
            t = t * self.scale
            factor = self.share if self.factor is None else self.factor * self.share
            factor = np.where(self.there, factor, self.kind(0))
        of_v = spmm(receivers, senders, self.v.shape[0], ct, factor)
        return {
            "raw": t,
            "v": of_v,
            "score_weights": self._shared("score_weights", ds, self.raw * self.scale),
            "bias": self._shared("bias", ds, np.ones_like(ds)),
            "weights": self._shared("weights", self.share, dp),
        }

    def _shared(self, name, a, b):
        """The dot of a and b over the axes that an argument lacks or has with size 1."""
        w = self.given[name]
        if w is None:
            return None
        rank = a.ndim
        shape = w.shape + (1,) * (rank - w.ndim)
        axes = [d for d in range(rank) if shape[d] == 1 and a.shape[d] != 1]
        if not axes:
            return narrow(a * b, w.dtype).reshape(w.shape)
        last = [np.moveaxis(v, axes, range(rank - len(axes), rank)) for v in (a, b)]
        lead = last[0].shape[: rank - len(axes)]
        out = dot([v.reshape(*lead, -1) for v in last], fma, a.dtype)
        return narrow(out, w.dtype).reshape(w.shape)
