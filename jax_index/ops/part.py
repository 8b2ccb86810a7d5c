# SPDX-License-Identifier: Apache-2.0
"""GraphPart: one part of a partitioned graph inside a shard_map, and the ops on it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from jax_index import _check, _primitive, _storage
from jax_index._graph import Graph
from jax_index._plan import IndexPlan
from jax_index.ops import halo, halo_attention, rows
from jax_index.ops.attention import gat_attention, graph_attention
from jax_index.ops.attention_arguments import dot_arguments, gat_arguments
from jax_index.ops.graph_arguments import computed, numeric, per_edge, stored
from jax_index.ops.halo import Half, Routes, turned
from jax_index.ops.matmul import sddmm, spmm

PART_FIX = "Pass the arrays of this part, as Partition.split lays them out."


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("near", "far"),
    meta_fields=("axis_name", "grad", "routes"),
)
@dataclasses.dataclass(frozen=True, eq=False)
class GraphPart:
    """One part of a partitioned graph, as :meth:`Partition.local` returns it in a shard_map.

    It owns nodes and the edges that enter them. Its methods take the rows of its own nodes and
    edges, fetch what they need of other parts by one exchange, and give the bits that the op
    of the same name gives on the whole graph. Ops that concern the receivers of edges alone
    (``segment_*``, :func:`scatter_add`, :func:`gather`, :func:`edge_softmax`) are the ordinary ones
    on :attr:`receivers` and :attr:`graph`; they communicate nothing.

    Where sizes differ between parts, rows are padded: what stands in padding is read by no sum.

    Attributes:
        near: the edges that enter this part's nodes.
        far: the edges that leave its nodes.
        axis_name: the mesh axis of parts.
        grad: ``"exact"`` or ``"halo"``, see :meth:`Partition.local`.
        routes: None, or the rounds in which parts send.
    """

    near: Half
    far: Half
    axis_name: str
    grad: str
    routes: Routes | None

    @property
    def graph(self) -> Graph:
        """This part's edges; senders are numbered as the rows that :meth:`exchange` returns."""
        return self.near.graph

    @property
    def receivers(self) -> IndexPlan:
        """The plan of the receivers of this part's edges."""
        return self.near.graph.receivers

    @property
    def sender_ids(self) -> jax.Array:
        """int32 ``[n_s]``, the number of each sender in the whole graph, -1 as padding."""
        return self.far.row_ids

    @property
    def receiver_ids(self) -> jax.Array:
        """int32 ``[n_r]``, the number of each receiver in the whole graph, -1 as padding."""
        return self.near.row_ids

    @property
    def edge_ids(self) -> jax.Array:
        """int32 ``[m]``, the number of each edge in the whole graph, -1 as padding."""
        return self.near.edge_ids

    @property
    def num_senders(self) -> int:
        """The number of senders of each part, padding included."""
        return self.far.graph.num_receivers

    @property
    def num_receivers(self) -> int:
        """The number of receivers of each part, padding included."""
        return self.near.graph.num_receivers

    @property
    def num_edges(self) -> int:
        """The number of edges of each part, padding included."""
        return self.near.graph.num_edges

    @property
    def T(self) -> GraphPart:  # noqa: N802 (the name that graphs have)
        """The same part of the transposed graph: its edges are those that leave the nodes.

        Bring arrays of edges there with :meth:`transpose_edges`.
        """
        routes = self.routes
        if routes is not None:
            routes = Routes(routes.far, routes.near, turned(routes.edges))
        return dataclasses.replace(self, near=self.far, far=self.near, routes=routes)

    def exchange(self, x: Any) -> jax.Array:
        """Return the rows of the senders with those of other parts behind them.

        For ops of one's own on :attr:`graph`.

        Args:
            x: ``[n_s, ...]``, the senders' rows of this part.

        Returns:
            ``[graph.num_senders, ...]`` of x's dtype; rows that no edge needs are 0.

        Raises:
            TypeError: x is no array.
            ValueError: x has another number of rows.

        Gradient:
            Partial sums are sent back and added by the owner: the bits depend on the partition.

        Determinism:
            Bits are moved, never computed.
        """
        x, part = self._rows("exchange", "x", x, self.num_senders, "one for each sender")
        return halo.exchange(x, part)

    def transpose_edges(self, y: Any) -> jax.Array:
        """Bring an array of this part's edges to the edges that leave its nodes.

        Args:
            y: ``[m, ...]``, for the edges that enter this part's nodes.

        Returns:
            The array for the edges of :attr:`T`, of y's dtype.

        Raises:
            TypeError: y is no array.
            ValueError: y has another number of edges.

        Gradient:
            The way back. Any order of reverse mode.

        Determinism:
            Bits are moved, never computed.
        """
        y, part = self._rows("transpose_edges", "y", y, self.num_edges, "one for each edge")
        return halo.to_far(y, part)

    def gather(self, x: Any, *, lowering: str = "auto") -> jax.Array:
        """Take the sender's row for each edge: ``gather(x, graph.senders)`` of the whole graph.

        Args:
            x: ``[n_s, ...]``, the senders' rows of this part.
            lowering: see :func:`gather`.

        Returns:
            ``[m, ...]`` of x's dtype; 0 for padding.

        Raises:
            TypeError: x is no array.
            ValueError: x has another number of rows, or an unknown lowering.

        Gradient:
            The cotangents of cut edges are sent one by one; the owner of a sender folds all of its
            edges in the order of the whole graph.

        Determinism:
            Equal to the unsharded op's bits, as the gradient is.
        """
        x, part = self._rows("gather", "x", x, self.num_senders, "one for each sender")
        if self.grad == "halo":
            return rows.gather(halo.exchange(x, part), part.graph.senders, lowering=lowering)
        return halo.gather(x, None, part, lowering)

    def scatter_add(self, y: Any) -> jax.Array:
        """Sum edges into their senders: ``scatter_add(y, graph.senders)`` of the whole graph.

        Args:
            y: ``[m, ...]``, for the edges that enter this part's nodes.

        Returns:
            ``[n_s, ...]``, the sums of the senders of this part.

        Raises:
            TypeError: y is no array of numbers.
            ValueError: y has another number of edges.

        Gradient:
            :meth:`gather`. Any order of reverse mode.

        Determinism:
            Equal to the unsharded op's bits: edges are sent one by one, whatever ``grad`` is.
        """
        y, part = self._rows("scatter_add", "y", y, self.num_edges, "one for each edge")
        rows.check_summable("GraphPart.scatter_add", "y", y.dtype)
        return halo.scatter_add(y, part)

    def spmm(self, x: Any, weights: Any = None) -> jax.Array:
        """Multiply the graph's matrix with node features, see :func:`spmm`.

        Args:
            x: ``[n_s, ...]``, the senders' rows of this part.
            weights: None, or ``[m, *prefix]``, for the edges that enter this part's nodes.

        Returns:
            ``[n_r, ...]``, the rows of the receivers of this part.

        Raises:
            TypeError: a wrong type of argument.
            ValueError: sizes that do not belong together.

        Gradient:
            The cotangents of receivers are exchanged as the rows of senders are in the forward
            pass, the weights of cut edges are sent to the senders' owners, and those sum over the
            edges that they keep. Any order of reverse mode.

        Determinism:
            Equal to the unsharded op's bits, as the gradient is.
        """
        op = "GraphPart.spmm"
        x, part = self._rows("spmm", "x", x, self.num_senders, "one for each sender")
        numeric(op, "x", x)
        if self.grad == "halo":
            return spmm(part.graph, halo.exchange(x, part), weights)
        dtype = jnp.result_type(x)
        if weights is not None:
            weights = per_edge(op, "weights", weights, self.graph, x.shape[1:], "x")
            dtype = jnp.result_type(x, weights)
            weights = computed(weights, dtype)
        x, weights, part = _primitive.align_varying(computed(x, dtype), weights, part)
        return stored(halo.spmm(x, weights, None, part), dtype)

    def sddmm(self, x: Any, y: Any) -> jax.Array:
        """Dot the ends of each edge, see :func:`sddmm`.

        Args:
            x: ``[n_s, *prefix, D]``, the senders' rows of this part.
            y: ``[n_r, *prefix, D]``, the receivers' rows of this part.

        Returns:
            ``[m, *prefix]``, for the edges that enter this part's nodes; 0 for padding.

        Raises:
            TypeError: a wrong type of argument.
            ValueError: sizes that do not belong together.

        Gradient:
            :meth:`spmm` on both sides. Any order of reverse mode.

        Determinism:
            Equal to the unsharded op's bits, as the gradient is.
        """
        op = "GraphPart.sddmm"
        x, part = self._rows("sddmm", "x", x, self.num_senders, "one for each sender")
        y, _ = self._rows("sddmm", "y", y, self.num_receivers, "one for each receiver")
        for name, value in (("x", x), ("y", y)):
            numeric(op, name, value)
            if value.ndim < 2:
                fix = f"Add the axis of features, for example {name}[:, None]."
                expected = "an array of at least two axes, the last one of features"
                _check.fail(ValueError, op, name, expected, f"shape {value.shape}", fix)
        if x.shape[1:] != y.shape[1:]:
            fix = "Both ends of an edge have the same features."
            expected = f"an array of x's shape {x.shape} behind the first axis"
            _check.fail(ValueError, op, "y", expected, f"shape {y.shape}", fix)
        if self.grad == "halo":
            return sddmm(part.graph, halo.exchange(x, part), y)
        dtype = jnp.result_type(x, y)
        x, y, part = _primitive.align_varying(computed(x, dtype), computed(y, dtype), part)
        return stored(halo.sddmm(x, y, None, part, 1, x.dtype), dtype)

    def graph_attention(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float | None = None,
        score_weights: Any = None,
        bias: Any = None,
        clip: tuple[float, float] | None = None,
        normalize: str = "softmax",
        denominator_offset: float = 0.0,
        weights: Any = None,
    ) -> jax.Array:
        """Attend from each receiver of this part to its senders, see :func:`graph_attention`.

        Args:
            q: ``[n_r, *batch, heads, D]``, the receivers' rows of this part.
            k: ``[n_s, *batch, heads, D]``, the senders' rows of this part.
            v: ``[n_s, *batch, heads, D_v]``, likewise.
            scale: see :func:`graph_attention`, as all that follow; per-edge arrays are for the
                edges that enter this part's nodes.
            score_weights: per-edge factors of scores.
            bias: per-edge summands of scores.
            clip: bounds of scores.
            normalize: ``"softmax"`` or ``"sum"``.
            denominator_offset: a Python number.
            weights: per-edge factors after normalisation.

        Returns:
            ``[n_r, *batch, heads, D_v]``, the rows of the receivers of this part.

        Raises:
            TypeError: a wrong type of argument.
            ValueError: sizes that do not belong together, or an unknown normalize.

        Gradient:
            For all arrays. Keys and values come in one exchange; backward, queries and cotangents
            are exchanged, and two numbers a head for each cut edge. Any order of reverse mode.

        Determinism:
            Equal to the unsharded op's bits, as the gradient is.
        """
        op = "GraphPart.graph_attention"
        edges: dict[str, Any] = {"score_weights": score_weights, "bias": bias, "weights": weights}
        how: dict[str, Any] = {
            "clip": clip,
            "normalize": normalize,
            "denominator_offset": denominator_offset,
        }
        shared = k is v
        q, k, v, arrays, static, dtype = dot_arguments(
            op, self.graph, self.num_senders, q, k, v, scale, edges, how
        )
        part, q, k, v, arrays = _primitive.align_varying(self, q, k, v, arrays)
        if self.grad == "halo":
            k, v = (halo.exchange(x, part) for x in (k, v))
            named = dict(zip(edges, arrays, strict=True))
            out = graph_attention(part.graph, q, k, v, scale=static[0], **named, **how)
            return stored(out, dtype)
        v = k if shared else v
        return stored(halo_attention.dot_attention(part, q, k, v, arrays, static), dtype)

    def gat_attention(
        self,
        h_s: Any,
        h_r: Any,
        att: Any,
        *,
        slope: float = 0.2,
        version: int = 1,
        scale: float = 1.0,
        score_weights: Any = None,
        bias: Any = None,
        clip: tuple[float, float] | None = None,
        normalize: str = "softmax",
        denominator_offset: float = 0.0,
        weights: Any = None,
    ) -> jax.Array:
        """Attend with additive scores, see :func:`gat_attention`.

        Args:
            h_s: ``[n_s, *batch, heads, D]``, the senders' rows of this part.
            h_r: ``[n_r, *batch, heads, D]``, the receivers' rows of this part.
            att: version 1 ``[2, heads, D]``, version 2 ``[heads, D]``; the same in all parts.
            slope: see :func:`gat_attention`, as all that follow; per-edge arrays are for the edges
                that enter this part's nodes.
            version: 1 or 2.
            scale: a Python number.
            score_weights: per-edge factors of scores.
            bias: per-edge summands of scores.
            clip: bounds of scores.
            normalize: ``"softmax"`` or ``"sum"``.
            denominator_offset: a Python number.
            weights: per-edge factors after normalisation.

        Returns:
            ``[n_r, *batch, heads, D]``, the rows of the receivers of this part.

        Raises:
            TypeError: a wrong type of argument.
            ValueError: sizes that do not belong together, or an unknown version.

        Gradient:
            For all arrays. Any order of reverse mode.

        Determinism:
            Equal to the unsharded op's bits, as the gradients but that of att are: JAX adds what
            each part has of it.
        """
        op = "GraphPart.gat_attention"
        edges: dict[str, Any] = {"score_weights": score_weights, "bias": bias, "weights": weights}
        how: dict[str, Any] = {
            "clip": clip,
            "normalize": normalize,
            "denominator_offset": denominator_offset,
        }
        h_s, h_r, att, arrays, static, form, dtype = gat_arguments(
            op, self.graph, self.num_senders, h_s, h_r, att, slope, version, scale, edges, how
        )
        part, h_s, h_r, att, arrays = _primitive.align_varying(self, h_s, h_r, att, arrays)
        if self.grad == "halo":
            named = dict(zip(edges, arrays, strict=True))
            kind: dict[str, Any] = {"slope": form[0], "version": form[1], "scale": static[0]}
            h_s = halo.exchange(h_s, part)
            out = gat_attention(part.graph, h_s, h_r, att, **kind, **named, **how)
            return stored(out, dtype)
        return stored(halo_attention.gat(part, h_s, h_r, att, arrays, static, form), dtype)

    def _rows(self, method: str, argument: str, value: Any, count: int, what: str) -> Any:
        op = f"GraphPart.{method}"
        value = _check.array(op, argument, value)
        if value.ndim == 0:
            fix = "Pass an array with an axis of rows."
            _check.fail(ValueError, op, argument, "an array of at least one axis", "a scalar", fix)
        if _storage.is_key(value.dtype):
            fix = "Send jax.random.key_data of them."
            expected = "of a dtype that devices exchange"
            _check.fail(TypeError, op, argument, expected, f"dtype {value.dtype}", fix)
        _check.rows(op, argument, value, 0, count, f"{what} of this part", PART_FIX)
        return _primitive.align_varying(value, self)
