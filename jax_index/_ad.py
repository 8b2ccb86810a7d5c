# SPDX-License-Identifier: Apache-2.0
"""Pairs of an op and its adjoint, differentiable in reverse mode or in every mode.

JAX's forward mode cannot pass through ``jax.custom_vjp``. In mode "any" the same pair of functions
becomes two primitives: `op_p`, the op, and `tangent_p`, its derivative, which is linear. The
derivative is the transpose of the adjoint, and its own transpose is the adjoint as it is written:
reverse mode computes the very same bits in both modes. Nothing here computes with numbers, but for
the sum of several operands' tangents, which the kernel of `adder` makes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from jax_index import _check, _noted, _sharding, _store

# --- The mode -----------------------------------------------------------------------------------


def _mode_at_import() -> bool:
    name = os.environ.get("JAX_INDEX_AD") or "reverse"
    if name not in ("any", "reverse"):
        fix = "Leave it unset for reverse mode alone, or set JAX_INDEX_AD=any."
        _check.fail(ValueError, "__init__", "JAX_INDEX_AD", "'any' or 'reverse'", repr(name), fix)
    return name == "any"


class _Mode(threading.local):
    any = _mode_at_import()


_MODE = _Mode()


@contextlib.contextmanager
def any_mode() -> Iterator[None]:
    """Let the ops that this thread calls be differentiable in every mode."""
    before, _MODE.any = _MODE.any, True
    try:
        yield
    finally:
        _MODE.any = before


def in_any_mode(fun: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fun`, run in mode "any" whenever it is called."""

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        before, _MODE.any = _MODE.any, True
        try:
            return fun(*args, **kwargs)
        finally:
            _MODE.any = before

    return run


def jit(fun: Callable[..., Any], static_argnums: Sequence[int] = ()) -> Callable[..., Any]:
    """Jit a function whose trace depends on the mode: one cache for each."""
    reverse = jax.jit(fun, static_argnums=static_argnums)
    every = jax.jit(in_any_mode(fun), static_argnums=static_argnums)

    @functools.wraps(fun)
    def call(*args: Any) -> Any:
        # What is traced with a static plan owns its arrays, so that no cache may hold it.
        for arg in args:
            if _noted.is_static(arg):
                return fun(*args)
        return every(*args) if _MODE.any else reverse(*args)

    return call


# The sum of two arrays of one of these dtypes and of one shape, with rules of its own:
# ops.pointwise.add.
adder: Callable[[Any, Any], Any] = ad.add_jaxvals
_ADDED = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def _total(terms: list[Any]) -> Any:
    own = terms[0].dtype in _ADDED
    return functools.reduce(adder if own else ad.add_jaxvals, terms)


# --- The pair -----------------------------------------------------------------------------------


class Rule:
    """A function with an adjoint: what ``jax.custom_vjp`` makes of it, or more in mode "any"."""

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
        linear: Sequence[Sequence[int]] = (),
    ) -> None:
        """Take a function of arrays, pytrees of arrays, and static arguments.

        Args:
            fun: the function, as ``jax.custom_vjp`` takes it.
            nondiff_argnums: the positions of its static arguments.
            linear: groups of argument positions in which it is linear together (or affine): it can
                be transposed with respect to those.
        """
        self.fun = fun
        self.static = tuple(nondiff_argnums)
        self.linear = linear
        self.reverse = jax.custom_vjp(fun, nondiff_argnums=self.static)
        functools.update_wrapper(self, fun)

    def defvjp(
        self,
        fwd: Callable[..., Any],
        bwd: Callable[..., Any],
        tangent: Callable[..., Any] | None = None,
        first_only: bool = False,
    ) -> None:
        """Set the rules.

        Args:
            fwd: as for ``jax.custom_vjp``.
            bwd: as for ``jax.custom_vjp``, linear in the cotangent, made of ops with rules.
            tangent: (static arguments, what fwd saved, a tangent for each argument, None in place
                of leaves that do not vary) to the tangent of what has a derivative of the result.
                Left out, it is the transpose of bwd.
            first_only: of the result, a tuple, the first entry alone has a derivative.
        """
        self.first_only = first_only
        self.tangent = tangent and self._of_what_fwd_saved(tangent)
        self.fwd, self.bwd = self._sharded_alike(fwd, bwd)
        self.reverse.defvjp(self.fwd, self.bwd)

    def _of_what_fwd_saved(self, tangent: Callable[..., Any]) -> Callable[..., Any]:
        at = len(self.static)
        return lambda *args: tangent(*args[:at], args[at][0], *args[at + 1 :])

    def _sharded_alike(self, fwd: Any, bwd: Any) -> tuple[Any, Any]:
        """Give each cotangent the sharding that its argument has over an explicit mesh.

        Ops decide on the sharding of their results by all operands: the cotangent of one that is
        replicated can come out sharded as another one is.
        """

        @functools.wraps(fwd)
        def fwd_noting(*args: Any) -> Any:
            out, saved = fwd(*args)
            arrays = [a for i, a in enumerate(args) if i not in self.static]
            return out, (saved, _noted.of(arrays))

        @functools.wraps(bwd)
        def bwd_alike(*args: Any) -> Any:
            *static, (saved, noted), ct = args
            cotangents = bwd(*static, saved, ct)
            pairs = zip(cotangents, noted.shardings, strict=True)
            return tuple(_noted.resharded(value, wanted) for value, wanted in pairs)

        return fwd_noting, bwd_alike

    def __call__(self, *args: Any) -> Any:
        """Apply the function."""
        if not _MODE.any:
            return self.reverse(*args)
        static = tuple(args[i] for i in self.static)
        arrays = tuple(a for i, a in enumerate(args) if i not in self.static)
        leaves, form = jax.tree.flatten(arrays)
        call = _call(bool(_noted.static_among(arrays)), self, static, form)
        out = op_p.bind(*leaves, call=call, batches=())
        return jax.tree.unflatten(call.out_form, out)

    def merged(self, static: tuple[Any, ...], arrays: Sequence[Any]) -> list[Any]:
        """Return all arguments in their order."""
        rest, given = iter(arrays), dict(zip(self.static, static, strict=True))
        count = len(static) + len(arrays)
        return [given[i] if i in given else next(rest) for i in range(count)]


def custom_vjp(
    fun: Callable[..., Any] | None = None,
    *,
    nondiff_argnums: Sequence[int] = (),
    linear: Sequence[Sequence[int]] = (),
) -> Any:
    """Decorate a function that gets an adjoint; see :class:`Rule`."""
    if fun is None:
        return functools.partial(Rule, nondiff_argnums=nondiff_argnums, linear=linear)
    return Rule(fun, nondiff_argnums, linear)


def push(fun: Callable[..., Any], args: Any, dots: Any) -> Any:
    """Return the tangent of fun(*args) along `dots`: args' structure, None where nothing varies."""
    form: Any = jax.tree.structure(args)
    leaves = jax.tree.leaves(args)
    along = dict(enumerate(form.flatten_up_to(dots)))
    active = [i for i, dot in along.items() if dot is not None]

    def of_active(*values: Any) -> Any:
        full = list(leaves)
        for i, value in zip(active, values, strict=True):
            full[i] = value
        return fun(*jax.tree.unflatten(form, full))

    return jax.jvp(of_active, [leaves[i] for i in active], [along[i] for i in active])[1]


def _inexact(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.inexact))


class _Call:
    """A rule with its static arguments, and the structure of the others."""

    names_plans = False

    def __init__(self, rule: Rule, static: tuple[Any, ...], form: Any) -> None:
        self.rule, self.static, self.form = rule, static, form
        # The structure of the result, of which these alone decide; known once it is traced.
        self.out_form: Any = None

    def run(self, *leaves: Any) -> list[Any]:
        """Return the leaves of the result."""
        args = self.rule.merged(self.static, jax.tree.unflatten(self.form, leaves))
        with any_mode():
            out, self.out_form = jax.tree.flatten(self.rule.fun(*args))
        return out

    def moving(self, outs: Sequence[Any]) -> list[int]:
        """Return which leaves of the result have a derivative."""
        count = len(outs)
        if self.rule.first_only:
            count = self.out_form.children()[0].num_leaves
        return [i for i in range(count) if _inexact(outs[i])]

    def along(self, active: tuple[int, ...], leaves: Any, dots: Any) -> tuple[list[Any], list[Any]]:
        """Return the leaves of the result, and tangents of those that have a derivative."""
        args = self.rule.merged(self.static, jax.tree.unflatten(self.form, leaves))
        with any_mode():
            out, saved = self.rule.fwd(*args)
        outs, self.out_form = jax.tree.flatten(out)
        moving = self.moving(outs)
        if not moving:
            return outs, []
        leaves_saved, saved_form = jax.tree.flatten(saved)
        # A rule may save a Python number, a size say, which stays one.
        arrays = [v for v in leaves_saved if isinstance(v, jax.Array)]
        constants = tuple(None if isinstance(v, jax.Array) else v for v in leaves_saved)
        avals = tuple(jax.typeof(leaves[i]) for i in active)
        out_avals = tuple(jax.typeof(value) for value in outs)
        parts = self, active, avals, saved_form, constants, tuple(moving), out_avals
        tangent = _tangent(bool(saved[1].static), *parts)
        return outs, tangent_p.bind(*arrays, *dots, call=tangent, batches=())


class _Tangent:
    """The derivative of a call with respect to some leaves, at what fwd saved."""

    names_plans = False

    def __init__(
        self,
        call: _Call,
        active: tuple[int, ...],
        avals: tuple[Any, ...],
        saved_form: Any,
        constants: tuple[Any, ...],
        moving: tuple[int, ...],
        out_avals: tuple[Any, ...],
    ) -> None:
        self.call, self.active, self.avals = call, active, avals
        self.saved_form, self.constants = saved_form, constants
        self.num_saved = sum(c is None for c in constants)
        self.moving, self.out_avals = moving, out_avals

    def saved(self, arrays: Sequence[Any]) -> Any:
        """Return what fwd saved."""
        rest = iter(arrays)
        leaves = [next(rest) if c is None else c for c in self.constants]
        return jax.tree.unflatten(self.saved_form, leaves)

    def push(self, *operands: Any) -> list[Any]:
        """Return the tangents of the result: linear in the operands behind the saved ones."""
        arrays, dots = operands[: self.num_saved], operands[self.num_saved :]
        rule = self.call.rule
        with any_mode():
            if rule.tangent is not None:
                full: list[Any] = [None] * self.call.form.num_leaves
                for i, dot in zip(self.active, dots, strict=True):
                    full[i] = dot
                along = self.call.form.unflatten(full)
                out = rule.tangent(*self.call.static, self.saved(arrays), *along)
                return list(jax.tree.leaves(out))
            specs = [self.out_avals[i] for i in self.moving]
            terms = []
            for k, dot in enumerate(dots):
                one = lambda *cts, k=k: self.pull(*arrays, *cts)[k]  # noqa: E731
                terms.append(jax.linear_transpose(one, *specs)(dot))
            return [_total(list(parts)) for parts in zip(*terms, strict=True)]

    def zeros(self, *operands: Any) -> list[Any]:
        """Return tangents that are 0."""
        del operands
        return [ad.zeros_like_aval(self.out_avals[i].to_tangent_aval()) for i in self.moving]

    def pull(self, *operands: Any) -> list[Any]:
        """Return the cotangents of the active leaves: linear in those behind the saved ones."""
        arrays, cts = operands[: self.num_saved], operands[self.num_saved :]
        call = self.call
        full = [ad.instantiate_zeros(ad.Zero(aval.to_tangent_aval())) for aval in self.out_avals]
        for i, ct in zip(self.moving, cts, strict=True):
            full[i] = ct
        ct = jax.tree.unflatten(call.out_form, full)
        with any_mode():
            grads = call.rule.bwd(*call.static, self.saved(arrays), ct)
        flat: list[Any] = []
        for form, grad in zip(call.form.children(), grads, strict=True):
            flat += [None] * form.num_leaves if grad is None else form.flatten_up_to(grad)
        return [
            ad.zeros_like_aval(aval) if flat[i] is None else flat[i]
            for i, aval in zip(self.active, self.avals, strict=True)
        ]


class _Unified:
    """Makes objects of equal parts one, so that what is traced of them is traced once.

    What names static plans lives no longer than the programs that it is in.
    """

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.kept = functools.lru_cache(maxsize=4096)(kind)
        self.known: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        _store.let_go_of(kind)

    def __call__(self, names_plans: bool, *parts: Any) -> Any:
        if not names_plans:
            return self.kept(*parts)
        found = self.known.get(parts)
        if found is None:
            found = self.known.setdefault(parts, self.kind(*parts))
            found.names_plans = True
        return found


_call = _Unified(_Call)
_tangent = _Unified(_Tangent)


# --- The two primitives -------------------------------------------------------------------------
# `batches` holds, from the innermost vmap on, the batch axis of each operand; results carry the
# batch in front.


def _batched(fun: Callable[..., Any], batches: Any) -> Callable[..., Any]:
    for axes in batches:
        fun = jax.vmap(fun, in_axes=axes)
    return fun


def _run(call: Any, method: str, batches: Any) -> Any:
    """Return a method of a call under batches, jitted where that keeps no static plan alive."""
    if call.names_plans:
        return _batched(getattr(call, method), batches)
    return _jitted(call, method, batches)


@functools.lru_cache(maxsize=4096)
def _jitted(call: Any, method: str, batches: Any) -> Any:
    return jax.jit(_batched(getattr(call, method), batches))


def _define(name: str, method: str, abstract_method: str) -> _sharding.Divisible:
    """Make a primitive that runs a method of its parameter `call` under `batches`.

    Shapes come from `abstract_method`: tracing a tangent for them would not end, since it is made
    of its own adjoint's tangent.
    """
    # The kernels inside are not seen from outside.
    primitive = _sharding.Divisible(name)

    def evaluate(*operands: Any, call: Any, batches: Any) -> Any:
        return _run(call, method, batches)(*operands)

    def abstract(*avals: Any, call: Any, batches: Any) -> Any:
        return jax.make_jaxpr(_run(call, abstract_method, batches))(*avals).out_avals

    def batch(operands: Any, axes: Any, *, call: Any, batches: Any) -> Any:
        out = primitive.bind(*operands, call=call, batches=(*batches, tuple(axes)))
        return out, [0] * len(out)

    for form in primitive.forms:
        form.def_impl(evaluate)
        form.def_abstract_eval(abstract)
        batching.primitive_batchers[form] = batch
        mlir.register_lowering(form, mlir.lower_fun(evaluate, multiple_results=True))
    return primitive


op_p = _define("jax_index_op", "run", "run")
tangent_p = _define("jax_index_tangent", "push", "zeros")


def _along(call: _Call, batches: Any, active: tuple[int, ...]) -> Callable[..., Any]:
    """Return the function of leaves and active tangents to results and their tangents."""

    def fun(leaves: Any, dots: Any) -> Any:
        return call.along(active, leaves, dots)

    for axes in batches:
        fun = jax.vmap(fun, in_axes=(list(axes), [axes[i] for i in active]))
    return fun


def _op_jvp(primals: Any, tangents: Any, *, call: _Call, batches: Any) -> Any:
    active = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
    outs, dots = _along(call, batches, active)(list(primals), [tangents[i] for i in active])
    full = [ad.Zero(jax.typeof(value).to_tangent_aval()) for value in outs]
    # Nothing varies where all that has a derivative is an integer.
    for i, dot in zip(call.moving(outs) if dots else [], dots, strict=True):
        full[i] = dot
    return outs, full


def _op_transpose(cts: Any, *operands: Any, call: _Call, batches: Any) -> Any:
    active = tuple(i for i, v in enumerate(operands) if ad.is_undefined_primal(v))
    rule, forms = call.rule, call.form.children()
    numbers = [i for i in range(len(forms) + len(rule.static)) if i not in rule.static]
    owners = [n for n, form in zip(numbers, forms, strict=True) for _ in range(form.num_leaves)]
    positions = {owners[i] for i in active}
    if not any(positions <= set(group) for group in rule.linear):
        name = getattr(rule.fun, "__name__", "op").lstrip("_")
        fix = "Differentiate with jax.vjp or jax.jvp; only linear functions can be transposed."
        expected = "linear in the operands that it is transposed with respect to"
        _check.fail(TypeError, name, "the function", expected, "one that is not", fix)
    avals = [operands[i].aval for i in active]
    primals = [ad.zeros_like_aval(v.aval) if i in active else v for i, v in enumerate(operands)]
    along = _along(call, batches, active)
    outs = jax.eval_shape(along, primals, avals)[0]
    given = [ad.instantiate_zeros(cts[i]) for i in call.moving(outs)]
    found = jax.linear_transpose(lambda *dots: along(primals, list(dots))[1], *avals)(given)
    full: list[Any] = [None] * len(operands)
    for i, ct in zip(active, found, strict=True):
        full[i] = ct
    return full


def _tangent_jvp(primals: Any, tangents: Any, *, call: _Tangent, batches: Any) -> Any:
    count = call.num_saved
    out = tangent_p.bind(*primals, call=call, batches=batches)
    terms = []
    if any(type(t) is not ad.Zero for t in tangents[count:]):
        dots = [ad.instantiate_zeros(t) for t in tangents[count:]]
        terms.append(tangent_p.bind(*primals[:count], *dots, call=call, batches=batches))
    if any(type(t) is not ad.Zero for t in tangents[:count]):
        # In what was saved it is any function: differentiate what it is made of.
        along = [None if type(t) is ad.Zero else t for t in tangents[:count]]
        along += [None] * (len(primals) - count)
        terms.append(push(_batched(call.push, batches), tuple(primals), tuple(along)))
    return out, [_total(list(parts)) for parts in zip(*terms, strict=True)]


def _tangent_transpose(cts: Any, *operands: Any, call: _Tangent, batches: Any) -> Any:
    count, moving = call.num_saved, len(call.moving)
    fun: Callable[..., Any] = call.pull
    for axes in batches:
        fun = _pulled(fun, axes[:count], axes[count:], moving)
    found = fun(*operands[:count], *(ad.instantiate_zeros(ct) for ct in cts))
    return [*[None] * count, *found]


def _pulled(fun: Callable[..., Any], saved: Any, dots: Any, moving: int) -> Callable[..., Any]:
    """Batch an adjoint; what the batch shares gets the sum, which JAX makes here as elsewhere."""
    out_axes = [0 if axis is None else axis for axis in dots]
    inner = jax.vmap(fun, in_axes=(*saved, *[0] * moving), out_axes=out_axes)

    def outer(*operands: Any) -> Any:
        grads = inner(*operands)
        pairs = zip(grads, dots, strict=True)
        return [grad.sum(0) if axis is None else grad for grad, axis in pairs]

    return outer


for _form in op_p.forms:
    ad.primitive_jvps[_form] = _op_jvp
    ad.primitive_transposes[_form] = _op_transpose
for _form in tangent_p.forms:
    ad.primitive_jvps[_form] = in_any_mode(_tangent_jvp)
    ad.primitive_transposes[_form] = _tangent_transpose
