# SPDX-License-Identifier: Apache-2.0
"""jax_index, and XLA with the composition of gathers and scatters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bench.fused.contention import refuse_contended
from bench.fused.inputs import Inputs
from bench.kernels.peer import Peer, Prepared
from bench.kernels.peers_jax import SUBJECT
from bench.kernels.timing import JaxCalls, jit_into, time_calls

KEPT_PROGRAMS = 16

_programs: OrderedDict[Any, Any] = OrderedDict()


def _compiled(kind: str, name: str, fn: Callable[..., Any], inputs: Inputs, index: Any) -> Any:
    """The program fn(index, *operands) into given buffers, and these; lines of one shape share it.

    The buffers are shapes, for the program takes arrays' places.
    """

    def call(operands: Any, index: Any) -> Any:
        return fn(index, *operands)

    operands = inputs.operands[0]
    leaves, structure = jax.tree.flatten((operands, index))
    key = (kind, name, inputs.line.op, structure, tuple((x.shape, str(x.dtype)) for x in leaves))
    if key not in _programs:
        buffers = jax.eval_shape(call, operands, index)
        program = jit_into(call, name).lower(buffers, operands, index).compile()
        _programs[key] = (program, buffers)
        while len(_programs) > KEPT_PROGRAMS:
            _programs.popitem(last=False)
    _programs.move_to_end(key)
    return _programs[key]


def _prepare(kind: str, name: str, fn: Callable[..., Any], inputs: Inputs, index: Any) -> Prepared:
    program, shapes = _compiled(kind, name, fn, inputs, index)
    buffers = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    result = jax.block_until_ready(program(buffers, inputs.operands[0], index))
    calls = JaxCalls(program, result, inputs.operands, index)
    memory = program.memory_analysis()
    temp = getattr(memory, "temp_size_in_bytes", None)
    return Prepared(
        result,
        lambda seconds: time_calls(calls, calls.wait, seconds),
        calls,
        facts={"temp_bytes": temp},
    )


def _jax_index(inputs: Inputs, name: str) -> Prepared:
    return _prepare(SUBJECT, name, inputs.op.ours, inputs, inputs.index)


def _xla(inputs: Inputs, name: str) -> Prepared:
    refuse_contended(inputs, lambda kept: _probe(inputs, kept))
    return _prepare("xla", name, inputs.xla, inputs, inputs.ends.ids)


def _probe(inputs: Inputs, kept: int) -> Callable[[], Any]:
    operands, ends = inputs.part(kept)
    fn = jax.jit(inputs.xla)
    return lambda: jax.block_until_ready(fn(ends, *operands))


PEERS = (Peer(SUBJECT, "jax_index", _jax_index), Peer("xla", "XLA", _xla))
