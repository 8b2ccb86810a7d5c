# SPDX-License-Identifier: Apache-2.0
"""Programs for several devices: which axes of a call a device may have a part of.

XLA cannot see into a kernel, so that it would gather every operand to every device. Here each
primitive says what its axes are, and a part of the data goes through the same kernel. Axes of
batches, heads and features are independent of each other: a device computes its own part and nobody
communicates. Rows that edges look up are needed whole. A sum over an axis that is cut is the sum of
what the devices have, if it may be.

Nothing here concerns a program of one device, or the body of a shard_map: there the kernel is
called as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import (
    ArrayMapping,
    SdyShardingRule,
    custom_partitioning,
)
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jax_index import _check

Names = tuple[str, ...]

# What the axis of rows or edges of an operand, or an axis of a plan's array, is:
WHOLE = "whole"  # every device reads all of it
EDGES = "edges"  # an entry of the result needs the entry of the same number alone
SUMMED = "summed"  # the kernel sums over it


class Parts(NamedTuple):
    """What the axes of one call are.

    data: the number of each data operand, and what its axis of rows or edges is.
    plan: the number of each array of a plan, and what its axes behind those of a batch are.
    out: what the axis of the first result is; further results are workspaces.
    contracted: how many last axes of the data are summed over.
    local: the parameters, and how many edges a device has, to the parameters of its call.
    add: the primitive, mesh axes, operands and parameters to the result added over these axes,
        where a summed axis is cut; None: that is an error.
    op: the name that the error carries; empty: the primitive's.
    """

    data: Sequence[tuple[int, str]]
    plan: Sequence[tuple[int, Sequence[str]]] = ()
    out: str = WHOLE
    contracted: int = 0
    local: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
    add: Callable[..., Any] | None = None
    op: str = ""


PartsOf = Callable[..., Parts]


class _Rule(NamedTuple):
    """A name for each axis of a call; axes of one name are cut together."""

    operands: list[Names]
    result: Names
    sizes: dict[str, int]
    alone: frozenset[str]  # axes that are not cut
    added: frozenset[str]  # axes that the result does not have


def _rule(parts: Parts, shapes: Sequence[Any], out: Any, params: dict[str, Any]) -> _Rule:
    """Name the axes of operands of `shapes` and of a result of shape `out`."""
    axis, plan_axes = params.get("axis"), params.get("plan_axes", ())
    rank = len(out) + parts.contracted
    whole = [shapes[k] for k, _ in parts.data if len(shapes[k]) == rank]
    full = [*out, *(max(s[d] for s in whole) for d in range(len(out), rank))]
    sizes: dict[str, int] = {}
    alone: set[str] = set()

    def name(operand: int, d: int, size: int, kind: str, wanted: int) -> str:
        # An axis of size 1 that others do not have so is shared along it.
        if kind == WHOLE or size != wanted:
            alone.add(f"o{operand}d{d}")
            kind = f"o{operand}d{d}"
        sizes[kind] = size
        return kind

    names: list[Names] = [()] * len(shapes)
    for k, kind in parts.data:
        names[k] = tuple(
            name(k, d, size, kind, size if kind == SUMMED else out[d])
            if d == axis
            else name(k, d, size, f"a{d}", full[d])
            for d, size in enumerate(shapes[k])
        )
    lead = len(plan_axes)
    for k, kinds in parts.plan:
        names[k] = tuple(
            name(k, d, size, f"a{plan_axes[d]}", full[plan_axes[d]])
            if d < lead
            else name(k, d, size, kinds[d - lead], size)
            for d, size in enumerate(shapes[k])
        )
    result = tuple(
        name(len(shapes), d, size, parts.out if d == axis else f"a{d}", size)
        for d, size in enumerate(out)
    )
    added = frozenset(sizes) - frozenset(result) - alone
    return _Rule(names, result, sizes, frozenset(alone), added)


def _mesh_axes(entry: Any) -> Names:
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, tuple) else (entry,)


def _padded(sharding: Any, rank: int) -> list[Any]:
    # XLA asks for the sharding of a result before it knows that of every operand.
    spec = getattr(sharding, "spec", None)
    return [*(() if spec is None else spec), *[None] * rank][:rank]


def _cuts(rule: _Rule, specs: Sequence[Any], result: Any, mesh: Any) -> dict[str, Names]:
    """Choose the mesh axes that each named axis is cut over.

    Operands are followed before the result: work that is spread stays spread. A mesh axis cuts one
    axis of a call.
    """
    found: dict[str, Names] = {}
    for names, spec in [*zip(rule.operands, specs, strict=True), (rule.result, result)]:
        for name, entry in zip(names, spec, strict=True):
            axes = _mesh_axes(entry)
            taken = {axis for used in found.values() for axis in used}
            if not axes or name in found or name in rule.alone or taken & set(axes):
                continue
            # What pads the last part of an uneven cut would be summed.
            if name not in rule.added or _is_even(rule, name, axes, mesh):
                found[name] = axes
    return found


def _is_even(rule: _Rule, name: str, axes: Names, mesh: Any) -> bool:
    return rule.sizes[name] % math.prod(mesh.shape[a] for a in axes) == 0


def _spec(names: Names, cuts: dict[str, Names]) -> PartitionSpec:
    return PartitionSpec(*(cuts.get(name) or None for name in names))


# --- Explicit meshes ------------------------------------------------------------------------------


def explicit(
    op: str, parts_of: PartsOf, avals: Sequence[Any], out: Any, params: dict[str, Any]
) -> Any:
    """Return the aval of the result with the sharding that operands of an explicit mesh give it."""
    specs = [_padded(aval.sharding, aval.ndim) for aval in avals]
    if all(entry is None for spec in specs for entry in spec):
        return out
    mesh = next(a.sharding.mesh for a, s in zip(avals, specs, strict=True) if any(s))
    shapes = [aval.shape for aval in avals]
    parts = parts_of(**params)
    rule = _rule(parts, shapes, out.shape, params)
    _refuse_cut_sums(op, parts, rule, shapes, specs, mesh)
    cuts = _cuts(rule, specs, [None] * out.ndim, mesh)
    return out.update(sharding=NamedSharding(mesh, _spec(rule.result, cuts)))


def _refuse_cut_sums(
    op: str, parts: Parts, rule: _Rule, shapes: Any, specs: Any, mesh: Any
) -> None:
    """Raise where a sum over edges is cut and adding the parts was not asked for."""
    for names, shape, spec in zip(rule.operands, shapes, specs, strict=True):
        for d, (name, entry) in enumerate(zip(names, spec, strict=True)):
            axes = _mesh_axes(entry)
            if name != SUMMED or not axes:
                continue
            if parts.add is None:
                expected = "whole on every device"
                fix = (
                    "Cut the graph with jax_index.partition; or replicate the array first, with "
                    "jax.lax.with_sharding_constraint or jax.sharding.reshard; or, in scatter_add, "
                    "segment_sum and the gradient of gather, let devices add the sums of their "
                    "parts with allow_reduction=True, whose bits are not promised."
                )
            elif not _is_even(rule, name, axes, mesh):
                expected = "whole on every device or sharded evenly"
                fix = "Pad the edges, with -1 for their ids."
            else:
                continue
            given = f"an array of shape {tuple(shape)} whose axis {d} is sharded over {entry!r}"
            _check.fail(ValueError, parts.op or op, "the axis of edges", expected, given, fix)


def whole(x: jax.Array, axis: int) -> jax.Array:
    """Replicate rows that are sharded over an explicit mesh; the cotangent is sharded again."""
    return _resharded(x, axis, None, x) if is_cut(x, axis) else x


def is_cut(x: jax.Array, axis: int) -> bool:
    """Say whether an axis is sharded over an explicit mesh."""
    spec = jax.typeof(x).sharding.spec
    return axis < len(spec) and spec[axis] is not None


def like_edges(ids: jax.Array, y: jax.Array, axis: int) -> jax.Array:
    """Shard ids as the edges of y are over an explicit mesh."""
    return _resharded(ids, -1, jax.typeof(y).sharding.spec[axis], y)


def _resharded(x: jax.Array, axis: int, entry: Any, like: Any) -> jax.Array:
    spec = _padded(jax.typeof(x).sharding, x.ndim)
    spec[axis] = entry
    # A spec alone needs the context of a mesh. An array knows its devices, a traced one has none.
    mesh = (
        jax.typeof(like).sharding.mesh if isinstance(like, jax.core.Tracer) else like.sharding.mesh
    )
    return jax.sharding.reshard(x, NamedSharding(mesh, PartitionSpec(*spec)))


def asked(op: str, out_sharding: Any) -> NamedSharding | None:
    """Check the argument out_sharding, as jax.ops takes it: over explicit axes of the mesh."""
    if out_sharding is None:
        return None
    argument, expected = "out_sharding", "None, a NamedSharding or a PartitionSpec"
    if not isinstance(out_sharding, NamedSharding | PartitionSpec):
        fix = "The sharding of the result, over an explicit mesh."
        _check.fail(TypeError, op, argument, expected, _check.describe(out_sharding), fix)
    if isinstance(out_sharding, NamedSharding) and out_sharding.mesh.empty:
        return None
    if isinstance(out_sharding, PartitionSpec):
        around: Any = jax.sharding.get_abstract_mesh()
        if around.empty:
            fix = "Pass a NamedSharding, or set the mesh with jax.set_mesh."
            _check.fail(ValueError, op, argument, "over a mesh", f"{out_sharding} and no mesh", fix)
        out_sharding = NamedSharding(around, out_sharding)
    mesh, spec = out_sharding.mesh, out_sharding.spec
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    names = [axis for entry in spec for axis in _mesh_axes(entry)]
    left = [axis for axis in names if kinds.get(axis) != AxisType.Explicit]
    if left or getattr(spec, "unreduced", None):
        fix = "Constrain the result instead: jax.lax.with_sharding_constraint(out, sharding)."
        _check.fail(ValueError, op, argument, "over explicit axes of the mesh", f"{spec}", fix)
    return out_sharding


def placed(op: str, out: jax.Array, sharding: NamedSharding | None) -> jax.Array:
    """Give a result the sharding that was asked for."""
    if sharding is None:
        return out
    spec, sizes = sharding.spec, dict(sharding.mesh.shape)
    cut = [math.prod(sizes[axis] for axis in _mesh_axes(entry)) for entry in spec]
    if len(cut) > out.ndim or any(n % k for n, k in zip(out.shape, cut, strict=False)):
        fix = "Leave it out, or pad the segments."
        expected = f"one that cuts the result's shape {out.shape} evenly"
        _check.fail(ValueError, op, "out_sharding", expected, f"{spec}", fix)
    return jax.sharding.reshard(out, sharding)


# --- Automatic meshes -----------------------------------------------------------------------------


def register(primitive: Primitive) -> bool:
    """Let JAX tell the lowering of a primitive the devices; say whether this JAX can."""
    try:
        from jax._src.dispatch import prim_requires_devices_during_lowering as primitives

        primitives.add(primitive)
    except (ImportError, AttributeError):  # pragma: no cover (no known version)
        return False
    return True


class Divisible(Primitive):
    """A primitive that is told its devices when it is lowered, and a twin that is not.

    JAX lowers nothing that asks for devices for an AbstractMesh. In the body of a shard_map nobody
    needs them, and where the mesh is abstract there are none: the twin stands there.
    """

    multiple_results = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told = register(self)
        self.twin = Primitive(name)
        self.twin.multiple_results = True

    @property
    def forms(self) -> tuple[Primitive, Primitive]:
        """Both, which have the same rules."""
        return self, self.twin

    def bind(self, *operands: Any, **params: Any) -> Any:
        """Bind the one that belongs here, as every primitive does."""
        if _without_devices(operands):
            return self.twin.bind(*operands, **params)
        return super().bind(*operands, **params)


def _without_devices(operands: Sequence[Any]) -> bool:
    """Say whether all axes are those of a shard_map, or no mesh in sight has devices."""
    around: Any = jax.sharding.get_abstract_mesh()
    if not around.empty and all(kind == AxisType.Manual for kind in around.axis_types):
        return True
    of_operands = [getattr(jax.typeof(value), "sharding", None) for value in operands]
    meshes = [around, *(sharding.mesh for sharding in of_operands if sharding is not None)]
    # Where a mesh does not say whether it is one of devices, it counts as one.
    devices = [getattr(mesh, "abstract_device", True) for mesh in meshes if not mesh.empty]
    return bool(devices) and not any(devices)


def applies(ctx: Any) -> bool:
    """Say whether a program is for several devices and JAX, not the user, cuts its arrays.

    An exported program can call no Python when it is compiled, elsewhere.
    """
    context = ctx.module_context.axis_context
    devices = getattr(context, "device_assignment", None)
    if devices is None or len(devices) < 2 or getattr(context, "abstract_mesh", None) is None:
        return False
    lowering = getattr(ctx.module_context, "lowering_parameters", None)
    exported = getattr(lowering, "for_export", False)
    return not exported and all(aval.size for aval in (*ctx.avals_in, *ctx.avals_out[:1]))


def lower(
    op: str, primitive: Primitive, parts_of: PartsOf, ctx: Any, *operands: Any, **params: Any
) -> Any:
    """Lower a call for several devices: each computes the result's part that it has."""
    out, *rooms = ctx.avals_out
    shapes = [aval.shape for aval in ctx.avals_in]
    parts = parts_of(**params)
    rule = _rule(parts, shapes, out.shape, params)

    def whole(*operands: Any) -> Any:
        return primitive.bind(*operands, **params)[0]

    def infer(mesh: Any, args: Any, result: Any) -> Any:
        specs = [_padded(a.sharding, len(a.shape)) for a in args]
        cuts = _cuts(rule, specs, [None] * len(result.shape), mesh)
        return NamedSharding(mesh, _spec(rule.result, cuts))

    def partition(mesh: Any, args: Any, result: Any) -> Any:
        specs = [_padded(a.sharding, len(a.shape)) for a in args]
        _refuse_cut_sums(op, parts, rule, shapes, specs, mesh)
        cuts = _cuts(rule, specs, _padded(result.sharding, len(result.shape)), mesh)
        added = tuple(axis for name in rule.added for axis in cuts.get(name, ()))

        def local(*operands: Any) -> Any:
            mine = dict(params)
            if EDGES in cuts and parts.local is not None:
                each = math.prod(mesh.shape[a] for a in cuts[EDGES])
                mine = parts.local(mine, -(-rule.sizes[EDGES] // each))
            # Under an explicit mesh JAX 0.8 would mark what is local as sharded.
            with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
                if added and parts.add is not None:
                    return parts.add(primitive, added, *operands, **mine)
                return primitive.bind(*operands, **mine)[0]

        shardings = [NamedSharding(mesh, _spec(names, cuts)) for names in rule.operands]
        return mesh, local, NamedSharding(mesh, _spec(rule.result, cuts)), tuple(shardings)

    partitioned = custom_partitioning(whole)
    partitioned.def_partition(
        partition=partition,
        infer_sharding_from_operands=infer,
        sharding_rule=SdyShardingRule(
            tuple(ArrayMapping(*names) for names in rule.operands), (ArrayMapping(*rule.result),)
        ),
    )

    def call(*operands: Any) -> Any:
        # No one reads a workspace; the local calls have their own.
        return [partitioned(*operands), *(jnp.zeros(room.shape, room.dtype) for room in rooms)]

    return mlir.lower_fun(call, multiple_results=True)(ctx, *operands)
