// SPDX-License-Identifier: Apache-2.0
// From buffers to the arguments of a row fold.
#pragma once

#include "ffi/backend.h"
#include "ffi/dispatch.h"
#include "ffi/layout.h"

namespace jax_index {

// The static part of a call; every handler of a row fold has these attributes.
struct RowFoldAttrs {
  i64 axis;
  Dims plan_axes;
  bool identity;     // perm is the identity
  bool no_long_row;  // no row has more than kLongRow edges
  bool float4;       // bytes that hold a four-bit float each
};

using Plan = ffi::Buffer<ffi::S32>;

inline ffi::Error fill_row_fold(const char* op, const RowFoldAttrs& at, ffi::AnyBuffer edges,
                                const ffi::AnyBuffer* init, Plan indptr, Plan perm, Plan tasks,
                                ffi::AnyBuffer out, ffi::AnyBuffer partials, RowFoldArgs* a) {
  const Dims shape = out.dimensions();
  const i64 axis = at.axis;
  const auto last = [](Plan b, size_t k) { return b.dimensions()[b.dimensions().size() - k]; };
  JI_CHECK(data_fits(edges.dimensions(), shape, axis), op, "y", "the result's shape off the axis",
           edges.dimensions().size());
  JI_CHECK(plan_fits(indptr.dimensions(), 1, at.plan_axes, shape), op, "indptr", "[..., rows + 1]",
           indptr.dimensions().size());
  JI_CHECK(plan_fits(perm.dimensions(), 1, at.plan_axes, shape), op, "perm", "[..., num_edges]",
           perm.dimensions().size());
  JI_CHECK(plan_fits(tasks.dimensions(), 2, at.plan_axes, shape), op, "tasks", "[..., tasks, 2]",
           tasks.dimensions().size());
  const i64 num_edges = last(perm, 1);
  JI_CHECK(edges.dimensions()[axis] == num_edges, op, "y", "one row for each edge",
           edges.dimensions()[axis]);
  JI_CHECK(shape[axis] + 1 == last(indptr, 1), op, "indptr", "one more than the rows",
           last(indptr, 1));
  JI_CHECK(last(tasks, 1) == 2, op, "tasks", "pairs", last(tasks, 1));
  JI_CHECK(edges.element_type() == out.element_type(), op, "y", "the result's dtype",
           (int)edges.element_type());
  SumType type;
  JI_CHECK(sum_type(edges.element_type(), &type), op, "y", "a dtype that can be summed",
           (int)edges.element_type());
  if (at.float4) type = {DType::kF8, kFloat4, 1};

  const DataLayout from = data_layout(edges.dimensions(), axis);
  const DataLayout to = data_layout(shape, axis);
  DataLayout start;
  if (init != nullptr) {
    JI_CHECK(data_fits(init->dimensions(), shape, axis) && init->dimensions()[axis] == shape[axis],
             op, "x", "the result's shape", init->dimensions().size());
    JI_CHECK(init->element_type() == out.element_type(), op, "x", "the result's dtype",
             (int)init->element_type());
    start = data_layout(init->dimensions(), axis);
    a->init = init->untyped_data();
  }
  const auto plan = [&](Plan b, i64 rank) {
    return plan_strides(b.dimensions(), rank, shape.size(), at.plan_axes);
  };
  const std::vector<i64> of_indptr = plan(indptr, 1), of_perm = plan(perm, 1),
                         of_tasks = plan(tasks, 2);
  const Layout layout =
      layout_of(shape, axis, at.plan_axes, {edges.dimensions(), init ? init->dimensions() : shape});
  JI_CHECK(make_nest(layout,
                     {&from.stride, init ? &start.stride : nullptr, &to.stride, &of_indptr,
                      &of_perm, &of_tasks},
                     &a->nest),
           op, "y", "at most 12 separate batch axes", layout.loops.size());
  for (int d = 0; d < a->nest.rank; ++d)
    for (int k : {RowFoldArgs::kEdges, RowFoldArgs::kInit, RowFoldArgs::kOut})
      a->nest.stride[d][k] *= type.parts;

  a->edges = edges.untyped_data();
  a->out = out.untyped_data();
  a->csr.indptr = indptr.typed_data();
  a->csr.perm = at.identity ? nullptr : perm.typed_data();
  a->csr.tasks = tasks.typed_data();
  a->csr.num_rows = shape[axis];
  a->csr.num_edges = num_edges;
  a->csr.num_tasks = last(tasks, 2);
  a->no_long_row = at.no_long_row;
  a->width = layout.width * type.parts;
  a->edge_pitch = from.pitch * type.parts;
  a->init_pitch = start.pitch * type.parts;
  a->out_pitch = to.pitch * type.parts;
  a->dtype = type.dtype;
  a->mini = type.mini;
  a->partials = partials.untyped_data();
  const i64 row_bytes = a->nest.slices * a->width * accumulator_bytes(type.dtype);
  if (!at.no_long_row) {
    a->num_partials = max_partials(num_edges);
    JI_CHECK((i64)partials.size_bytes() >= a->num_partials * row_bytes, op, "partials",
             "room for every task of a long row", partials.size_bytes());
  }
  return ffi::Error::Success();
}

}  // namespace jax_index

// The attributes that RowFoldAttrs is made of, in its order.
#define JI_ROW_FOLD_ATTRS                      \
  .Attr<i64>("axis")                           \
      .Attr<ffi::Span<const i64>>("plan_axes") \
      .Attr<bool>("identity")                  \
      .Attr<bool>("no_long_row")               \
      .Attr<bool>("float4")
