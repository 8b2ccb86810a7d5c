# SPDX-License-Identifier: Apache-2.0
"""torch's sparse CSR matrices, and torch_geometric's scatter and softmax."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from typing import Any

from bench.fused.contention import refuse_contended
from bench.fused.inputs import Inputs
from bench.fused.ops import GRADIENTS
from bench.kernels.peer import Peer, Prepared, Skip
from bench.kernels.peers_torch import prepared, torch_device, torch_module


def _operands(inputs: Inputs) -> list[Any]:
    """The operands in torch; they share memory with JAX."""
    torch = torch_module()
    return [torch.from_dlpack(operand) for operand in inputs.operands[0]]


def _on_device(array: Any) -> Any:
    return torch_module().as_tensor(array).to(torch_device())


# --- Sparse CSR ---------------------------------------------------------------------------------


def _csr(inputs: Inputs, name: str) -> Prepared:
    """Weights are put into row order beforehand, once: the library has no other."""
    del name
    op = inputs.line.op
    if op not in ("spmm", "spmm weighted", "sddmm"):
        raise Skip("torch's sparse matrices have products alone")
    torch = torch_module()
    x, *rest = _operands(inputs)
    starts, senders, order = (_on_device(array) for array in inputs.ends.csr)
    order = order.long()
    values = rest[0][order] if op == "spmm weighted" else torch.ones(len(order)).to(x)
    shape = (inputs.num_rows, inputs.num_rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they say that sparse CSR is young
        matrix = torch.sparse_csr_tensor(starts, senders, values, shape)
    last: list[Any] = []
    if op == "sddmm":
        transposed = x.T

        def call() -> None:
            last[:] = [torch.sparse.sampled_addmm(matrix, rest[0], transposed, beta=0.0)]

        def out() -> Any:
            dots = torch.empty_like(values)
            dots[order] = last[0].values()
            return dots
    else:

        def call() -> None:
            last[:] = [matrix @ x]

        def out() -> Any:
            return last[0]

    return prepared(call, out)


# --- torch_geometric ----------------------------------------------------------------------------


def _scattered(inputs: Inputs, kept: int | None = None) -> Callable[..., Any]:
    """The op in torch_geometric's words: fn(*operands), on all edges or the first ones."""
    if importlib.util.find_spec("torch_geometric") is None:
        raise Skip("torch_geometric is not installed")
    from torch_geometric.utils import scatter, softmax

    n = inputs.num_rows
    ends = (inputs.ends.senders, inputs.ends.receivers)
    s, r = (_on_device(end.ids[:kept]).long() for end in ends)

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = (q[r] * k[s]).sum(-1) / math.sqrt(q.shape[-1])
        a = softmax(scores, r, num_nodes=n)
        return scatter(a[..., None] * v[s], r, dim_size=n, reduce="sum")

    return {
        "spmm": lambda x: scatter(x[s], r, dim_size=n, reduce="sum"),
        "spmm weighted": lambda x, w: scatter(x[s] * w[:, None], r, dim_size=n, reduce="sum"),
        "sddmm": lambda x, y: (x[s] * y[r]).sum(-1),
        "edge_softmax": lambda scores: softmax(scores, r, num_nodes=n),
        "graph_attention": attention,
        "segment_max": lambda data: scatter(data, r, dim_size=n, reduce="max"),
        "segment_softmax": lambda data: softmax(data, r, num_nodes=n),
    }[inputs.line.op.removesuffix(GRADIENTS)]


def _probe(inputs: Inputs, kept: int) -> Callable[[], Any]:
    torch, fn = torch_module(), _scattered(inputs, kept)
    operands = [torch.from_dlpack(operand) for operand in inputs.part(kept)[0]]
    if inputs.op.primal is not None:
        operands.pop()

    def call() -> None:
        fn(*operands)
        torch.cuda.synchronize()

    return call


def _geometric(inputs: Inputs, name: str) -> Prepared:
    del name
    torch, fn, operands = torch_module(), _scattered(inputs), _operands(inputs)
    refuse_contended(inputs, lambda kept: _probe(inputs, kept))
    last: list[Any] = []
    if inputs.op.primal is None:

        def call() -> None:
            with torch.no_grad():
                last[:] = [fn(*operands)]

        return prepared(call, lambda: last[0])
    *leaves, ct = operands
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]

    def step() -> None:
        out = fn(*leaves)
        last[:] = [(out.detach(), *torch.autograd.grad(out, leaves, ct))]

    # The backward pass runs in a thread of its own, which a recording would not see.
    return prepared(step, lambda: last[0], capture=False)


PEERS = (Peer("torch-csr", "torch CSR", _csr), Peer("pyg", "torch_geometric", _geometric))
