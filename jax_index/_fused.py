# SPDX-License-Identifier: Apache-2.0
"""An op with fused kernels in both directions, differentiable any number of times.

Its own derivative is a fused op too; the derivative of that one is taken through the same function
composed of ops that have rules themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jax_index import _ad

together_p = Primitive("jax_index_together")
together_p.multiple_results = True
together_p.def_abstract_eval(lambda *avals: list(avals))
together_p.def_impl(lambda *values: list(values))
mlir.register_lowering(together_p, lambda ctx, *values: list(values))


def _batch_together(values: Any, axes: Any) -> Any:
    size = next(v.shape[a] for v, a in zip(values, axes, strict=True) if a is not None)
    moved = [
        jnp.broadcast_to(v, (size, *v.shape)) if a is None else jnp.moveaxis(v, a, 0)
        for v, a in zip(values, axes, strict=True)
    ]
    return together_p.bind(*moved), [0] * len(moved)


batching.primitive_batchers[together_p] = _batch_together


def together(values: Any) -> Any:
    """Return `values` so that under vmap they all carry the batch, or none does.

    Where only some results of a custom_vjp function do, JAX counts the cotangents of the others
    once for each entry of the batch.
    """
    leaves, form = jax.tree.flatten(values)
    return jax.tree.unflatten(form, together_p.bind(*leaves))


def fused(
    forward: Callable[..., Any], backward: Callable[..., Any], composed: Callable[..., Any]
) -> Callable[..., Any]:
    """Return op(static, plan, inputs), inputs being a tuple of arrays (None where absent).

    Args:
        forward: (static, plan, inputs) to (result, what backward wants to know).
        backward: (static, plan, inputs, known, cotangent) to a cotangent for each input.
        composed: (static, plan, inputs) to the result, of ops with rules of their own.
    """

    @_ad.custom_vjp(nondiff_argnums=(0,), linear=((4,),))
    def gradient(static: Any, plan: Any, inputs: Any, known: Any, ct: Any) -> Any:
        return together(tuple(backward(static, plan, inputs, known, ct)))

    def gradient_fwd(static: Any, plan: Any, inputs: Any, known: Any, ct: Any) -> Any:
        return gradient(static, plan, inputs, known, ct), (plan, inputs, ct)

    def pull(static: Any, plan: Any, inputs: Any, ct: Any) -> Any:
        return jax.vjp(lambda v: composed(static, plan, v), inputs)[1](ct)[0]

    def gradient_bwd(static: Any, saved: Any, ct2: Any) -> Any:
        plan, inputs, ct = saved
        d_inputs, d_ct = jax.vjp(lambda v, ct: pull(static, plan, v, ct), inputs, ct)[1](ct2)
        return None, d_inputs, None, d_ct

    def gradient_tangent(static: Any, saved: Any, *dots: Any) -> Any:
        plan, inputs, ct = saved
        _, d_inputs, _, d_ct = dots
        return _ad.push(lambda v, ct: pull(static, plan, v, ct), (inputs, ct), (d_inputs, d_ct))

    gradient.defvjp(gradient_fwd, gradient_bwd, gradient_tangent)

    # What backward wants to know is a result too: the derivative of a derivative goes through here.
    @_ad.custom_vjp(nondiff_argnums=(0,))
    def both(static: Any, plan: Any, inputs: Any) -> Any:
        return forward(static, plan, inputs)

    def both_fwd(static: Any, plan: Any, inputs: Any) -> Any:
        out, known = both(static, plan, inputs)
        return (out, known), (plan, inputs, known)

    def both_bwd(static: Any, saved: Any, ct: Any) -> Any:
        plan, inputs, known = saved
        return None, gradient(static, plan, inputs, known, ct[0])

    def both_tangent(static: Any, saved: Any, d_plan: Any, d_inputs: Any) -> Any:
        del d_plan
        plan, inputs, _ = saved
        return _ad.push(lambda v: composed(static, plan, v), (inputs,), (d_inputs,))

    both.defvjp(both_fwd, both_bwd, both_tangent, first_only=True)

    def op(static: Any, plan: Any, inputs: Any) -> Any:
        return both(static, plan, inputs)[0]

    return op
