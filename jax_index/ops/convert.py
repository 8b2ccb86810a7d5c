# SPDX-License-Identifier: Apache-2.0
"""convert: an element type for another, rounded once, with the same bits on every machine.

Private: ops use it where operands are promoted, because XLA's own conversion may flush subnormals.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_index import _primitive, _storage


def _abstract(x: Any, *, dtype: Any) -> list[Any]:
    return [x.update(dtype=jnp.dtype(dtype), weak_type=False)]


def _reference(x: jax.Array, *, dtype: Any) -> list[jax.Array]:
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype, jnp.complexfloating
    ):
        x = x.real
    return [x.astype(dtype)]


def _batch(operands: list[Any], axes: list[Any], *, dtype: Any) -> Any:
    return operands, {"dtype": dtype}, [axes[0]]


convert_p = _primitive.define(
    "convert",
    abstract=_abstract,
    reference=_reference,
    attributes=lambda dtype: {},
    batch=_batch,
)


def convert(x: jax.Array, dtype: Any) -> jax.Array:
    """Return ``x`` in `dtype`, rounded once to nearest even; differentiable."""
    dtype = jnp.dtype(dtype)
    if x.dtype == dtype:
        return x
    return _convert(x, dtype, x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _convert(x: jax.Array, dtype: Any, source: Any) -> jax.Array:
    del source
    if x.dtype.itemsize < 1 or x.dtype.name in _storage.SUB_BYTE_INTEGERS:
        x = _storage.encode(x)
    return convert_p.bind(x, dtype=dtype)[0]


def _convert_fwd(x: jax.Array, dtype: Any, source: Any) -> tuple[jax.Array, None]:
    return _convert(x, dtype, source), None


def _convert_bwd(dtype: Any, source: Any, _: None, ct: Any) -> tuple[Any]:
    del dtype
    if not jnp.issubdtype(source, jnp.inexact) or ct.dtype == jax.dtypes.float0:
        return (None,)
    return (convert(ct, source),)


_convert.defvjp(_convert_fwd, _convert_bwd)
