# SPDX-License-Identifier: Apache-2.0
"""convert: an element type for another, rounded once, with the same bits on every machine.

Private: ops use it where operands are promoted, because XLA's own conversion may flush subnormals.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_index import _ad, _primitive, _storage


def _abstract(x: Any, *, dtype: Any, float4: Any) -> list[Any]:
    del float4
    return [x.update(dtype=jnp.dtype(dtype), weak_type=False)]


def _reference(x: jax.Array, *, dtype: Any, float4: Any) -> list[jax.Array]:
    if float4[0]:
        x = jax.lax.bitcast_convert_type(x.astype(jnp.uint4), jnp.float4_e2m1fn)
    if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype, jnp.complexfloating
    ):
        x = x.real
    if float4[1]:
        narrow = jax.lax.bitcast_convert_type(x.astype(jnp.float4_e2m1fn), jnp.uint4)
        return [narrow.astype(dtype)]
    return [x.astype(dtype)]


def _batch(operands: list[Any], axes: list[Any], **params: Any) -> Any:
    return operands, params, [axes[0]]


def _attributes(dtype: Any, float4: tuple[bool, bool]) -> dict[str, Any]:
    del dtype
    return {"float4_in": np.bool_(float4[0]), "float4_out": np.bool_(float4[1])}


convert_p = _primitive.define(
    "convert",
    abstract=_abstract,
    reference=_reference,
    attributes=_attributes,
    batch=_batch,
)


def convert(x: jax.Array, dtype: Any) -> jax.Array:
    """Return ``x`` in `dtype`, rounded once to nearest even; differentiable."""
    dtype = jnp.dtype(dtype)
    if x.dtype == dtype:
        return x
    return _convert(x, dtype, x.dtype)


@_ad.custom_vjp(nondiff_argnums=(1, 2), linear=((0,),))
def _convert(x: jax.Array, dtype: Any, source: Any) -> jax.Array:
    float4 = (_storage.is_float4(source), _storage.is_float4(dtype))
    like = jax.ShapeDtypeStruct((), dtype)
    (out,) = convert_p.bind(_storage.encode(x), dtype=_storage.stored(dtype), float4=float4)
    return _storage.decode(out, like)


def _convert_fwd(x: jax.Array, dtype: Any, source: Any) -> tuple[jax.Array, None]:
    return _convert(x, dtype, source), None


def _convert_bwd(dtype: Any, source: Any, _: None, ct: Any) -> tuple[Any]:
    del dtype
    if not jnp.issubdtype(source, jnp.inexact) or ct.dtype == jax.dtypes.float0:
        return (None,)
    return (convert(ct, source),)


_convert.defvjp(_convert_fwd, _convert_bwd)
