// SPDX-License-Identifier: Apache-2.0
// From buffers to the arguments of a row fold.
#pragma once

#include "ffi/backend.h"
#include "ffi/dispatch.h"
#include "ffi/plan.h"

namespace jax_index {

// The static part of a call; every handler of a row fold has these attributes.
struct RowFoldAttrs {
  i64 axis;
  Dims plan_axes;
  bool identity;     // perm is the identity
  bool no_long_row;  // no row has more than kLongRow edges
  bool float4;       // bytes that hold a four-bit float each
};

inline ffi::Error fill_row_fold(const char* op, const RowFoldAttrs& at, ffi::AnyBuffer edges,
                                const ffi::AnyBuffer* init, PlanArray ids, PlanArray indptr,
                                PlanArray perm, PlanArray tasks, ffi::AnyBuffer out,
                                ffi::AnyBuffer partials, RowFoldArgs* a) {
  const Dims shape = out.dimensions();
  const i64 axis = at.axis;
  JI_CHECK(data_fits(edges.dimensions(), shape, axis), op, "y", "the result's shape off the axis",
           edges.dimensions().size());
  PlanStrides plan;
  ffi::Error error =
      fill_csr(op, {ids, indptr, perm, tasks, at.identity}, shape, at.plan_axes, &a->csr, &plan);
  if (error.failure()) return error;
  JI_CHECK(edges.dimensions()[axis] == a->csr.num_edges, op, "y", "one row for each edge",
           edges.dimensions()[axis]);
  JI_CHECK(shape[axis] == a->csr.num_rows, op, "indptr", "one more than the rows",
           last_size(indptr));
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
  const Layout layout =
      layout_of(shape, axis, at.plan_axes, {edges.dimensions(), init ? init->dimensions() : shape});
  JI_CHECK(make_nest(layout,
                     {&from.stride, init ? &start.stride : nullptr, &to.stride, &plan.ids,
                      &plan.indptr, &plan.perm, &plan.tasks},
                     &a->nest),
           op, "y", "at most 24 separate batch axes", layout.loops.size());
  for (int d = 0; d < a->nest.rank; ++d)
    for (int k : {RowFoldArgs::kEdges, RowFoldArgs::kInit, RowFoldArgs::kOut})
      a->nest.stride[d][k] *= type.parts;

  a->edges = edges.untyped_data();
  a->out = out.untyped_data();
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
    a->num_partials = max_partials(a->csr.num_edges);
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
