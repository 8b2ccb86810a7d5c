# SPDX-License-Identifier: Apache-2.0
"""The segment reductions of jax.ops and four more, with jax.ops' signature.

Replacing the import is enough. Every one is a function of the bits of its inputs alone.
"""

from __future__ import annotations

from typing import Any

import jax

from jax_index import _check
from jax_index.ops import reductions, rows
from jax_index.ops.segment_arguments import prepare


def segment_sum(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
    *,
    allow_reduction: bool = False,
) -> jax.Array:
    """Sum entries by segment: ``out[i] = Σ data[e]`` over ``segment_ids[e] = i``.

    Args:
        data: ``[m, ...]``, integers, floats or complex.
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.
        allow_reduction: where the entries are sharded over devices, let each sum its own and add
            the sums over devices, instead of an error; see :func:`scatter_add`.

    Returns:
        ``[n, ...]`` of data's dtype; an empty segment is 0. Narrow floats are summed in float32 and
        rounded once; integers wrap.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        ``gather(ct, plan)``; any order of reverse mode.

    Determinism:
        The order of :func:`scatter_add`: equal bits on every machine.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> x, ids = jnp.array([1.0, 2.0, 4.0]), [0, 0, 2]
        >>> jax_index.segment_sum(x, ids, 3).tolist()
        [3.0, 0.0, 4.0]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_sum"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    rows.check_summable(op, "data", data.dtype)
    allow_reduction = _check.flag(op, "allow_reduction", allow_reduction)
    return place(rows.sum_rows(data, plan, allow_reduction=allow_reduction))


def segment_mean(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Average entries by segment: ``out[i] = Σ data[e] / |{e}|``.

    Args:
        data: ``[m, ...]``, real or complex; integers are averaged in the dtype of ``jnp.mean``.
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.

    Returns:
        ``[n, ...]``; an empty segment is 0. The sum is divided once, then rounded once.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        ``gather(ct / count, plan)``; any order of reverse mode.

    Determinism:
        The order of :func:`scatter_add`: equal bits on every machine.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> x, ids = jnp.array([1.0, 2.0, 4.0]), [0, 0, 2]
        >>> jax_index.segment_mean(x, ids, 3).tolist()
        [1.5, 0.0, 4.0]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_mean"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    return place(reductions.reduce(op, reductions.mean_rule, data, plan))


def segment_max(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Take the largest entry of each segment.

    Args:
        data: ``[m, ...]``, real or bool (any).
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.

    Returns:
        ``[n, ...]`` of data's dtype; an empty segment is the dtype's least value (-inf where there
        is one). NaN wins; of equal zeros the positive one.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        Entries that equal their segment's maximum, zeros of either sign among them, share the
        cotangent equally; in a segment whose maximum is NaN its NaNs do. Any order of reverse mode.

    Determinism:
        No order: equal bits on every machine.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> x, ids = jnp.array([1.0, 2.0, 4.0]), [0, 0, 2]
        >>> jax_index.segment_max(x, ids, 3).tolist()
        [2.0, -inf, 4.0]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_max"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    return place(reductions.extremum_of(op, data, plan, False))


def segment_min(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Take the smallest entry of each segment.

    Args:
        data: ``[m, ...]``, real or bool (all).
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.

    Returns:
        ``[n, ...]`` of data's dtype; an empty segment is the dtype's largest value (inf where there
        is one). NaN wins; of equal zeros the negative one.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        As :func:`segment_max`.

    Determinism:
        No order: equal bits on every machine.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> x, ids = jnp.array([1.0, 2.0, 4.0]), [0, 0, 2]
        >>> jax_index.segment_min(x, ids, 3).tolist()
        [1.0, inf, 4.0]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_min"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    return place(reductions.extremum_of(op, data, plan, True))


def segment_prod(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Multiply entries by segment: ``out[i] = Π data[e]`` over ``segment_ids[e] = i``.

    Args:
        data: ``[m, ...]``, integers or real floats.
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.

    Returns:
        ``[n, ...]`` of data's dtype; an empty segment is 1. Narrow floats are multiplied in float32
        and rounded once; integers wrap.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        The cotangent times the product of the other entries, also where the product of all is 0 or
        beyond the dtype's range: it is computed with an exponent of its own, divided by the entry
        and rounded to the dtype; zeros, infinities and NaNs are counted instead of multiplied. Any
        order of reverse mode; the second one and those above multiply what stands before an entry
        and after it, in the dtype's range.

    Determinism:
        The order of :func:`scatter_add`, from 1: equal bits on every machine.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> x, ids = jnp.array([1.0, 2.0, 4.0]), [0, 0, 2]
        >>> jax_index.segment_prod(x, ids, 3).tolist()
        [2.0, 1.0, 4.0]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_prod"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    return place(reductions.product_of(op, data, plan))


def segment_var(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Take the variance of each segment: ``Σ (data[e] - mean)² / count`` (ddof 0).

    Args:
        data: ``[m, ...]``, real; integers are reduced in the dtype of ``jnp.mean``.
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.

    Returns:
        ``[n, ...]``; an empty segment is 0.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        ``2 ct (data - mean) / count``; any order of reverse mode.

    Determinism:
        The mean first, then the sum of ``fma(d, d, sum)`` in the order of :func:`scatter_add`.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> x, ids = jnp.array([1.0, 2.0, 4.0]), [0, 0, 2]
        >>> jax_index.segment_var(x, ids, 3).tolist()
        [0.25, 0.0, 0.0]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_var"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    return place(reductions.reduce(op, reductions.var_rule, data, plan))


def segment_std(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Take the standard deviation of each segment: the root of :func:`segment_var`.

    Args:
        data: ``[m, ...]``, real; integers are reduced in the dtype of ``jnp.mean``.
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.

    Returns:
        ``[n, ...]``; an empty segment is 0.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        ``ct (data - mean) / (count std)``, 0 where std is 0; any order of reverse mode.

    Determinism:
        As :func:`segment_var`; the root is correctly rounded.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> x, ids = jnp.array([1.0, 2.0, 4.0]), [0, 0, 2]
        >>> jax_index.segment_std(x, ids, 3).tolist()
        [0.5, 0.0, 0.0]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_std"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    return place(reductions.reduce(op, reductions.std_rule, data, plan))


def segment_softmax(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Normalise entries by segment: ``out[e] = exp(data[e] - m) / Σ exp(data - m)``.

    m is the segment's largest entry. An entry of no segment, and a segment whose entries are all
    -inf, gives 0.

    Args:
        data: ``[m, ...]``, real; integers are reduced in the dtype of ``jnp.mean``.
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.

    Returns:
        ``[m, ...]``, data's shape.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        ``out (ct - Σ out ct)``; any order of reverse mode.

    Determinism:
        Sums in the order of :func:`scatter_add`; exp is this package's own, within one unit in the
        last place: equal bits on every machine.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> jax_index.segment_softmax(jnp.zeros(3), [0, 0, 2], 3).tolist()
        [0.5, 0.5, 1.0]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_softmax"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    return place(reductions.reduce(op, reductions.softmax_rule, data, plan))


def segment_logsumexp(
    data: Any,
    segment_ids: Any,
    num_segments: int | None = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    bucket_size: int | None = None,
    mode: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """Take ``m + log Σ exp(data[e] - m)`` of each segment, m its largest entry.

    Args:
        data: ``[m, ...]``, real; integers are reduced in the dtype of ``jnp.mean``.
        segment_ids: an :class:`IndexPlan`, or integers ``[m]``: the segment of each entry, in any
            order; concrete ones are sorted once and remembered, traced ones sorted on the device.
        num_segments: n, a Python int; None: with a plan its own, with concrete ids the largest
            plus one.
        indices_are_sorted: accepted and not believed: sortedness is found out.
        unique_indices: accepted and not believed.
        bucket_size: accepted; it changes nothing.
        mode: None, ``"drop"``, ``"fill"`` or ``"promise_in_bounds"``: an id outside [0, n) belongs
            to no segment; ``"raise"``: it is an error (concrete ids). With a plan None.
        out_sharding: over an explicit mesh, the result's: a NamedSharding or PartitionSpec.

    Returns:
        ``[n, ...]``; an empty segment is -inf, one with an entry inf is inf.

    Raises:
        TypeError: a dtype that cannot be reduced, or a wrong type of argument.
        ValueError: sizes that do not belong together, a refused mode, num_segments missing.
        IndexError: an id out of range in mode "raise".

    Gradient:
        ``ct softmax(data)``; any order of reverse mode.

    Determinism:
        As :func:`segment_softmax`; log is this package's own.

    Example:
        >>> import jax.numpy as jnp, jax_index
        >>> jax_index.segment_logsumexp(jnp.zeros(2), [1, 1], 2).tolist()
        [-inf, 0.6931471824645996]
    """
    del indices_are_sorted, unique_indices, bucket_size
    op = "segment_logsumexp"
    data, plan, place = prepare(op, data, segment_ids, num_segments, mode, out_sharding)
    return place(reductions.reduce(op, reductions.logsumexp_rule, data, plan))
