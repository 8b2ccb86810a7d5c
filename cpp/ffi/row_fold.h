// SPDX-License-Identifier: Apache-2.0
// From buffers to the arguments of a row fold.
#pragma once

#include <optional>

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

struct RowFoldOperands {
  ffi::AnyBuffer edges;
  PlanArray ids, indptr, perm, tasks;
  ffi::AnyBuffer out, partials;
  std::optional<ffi::AnyBuffer> row = {};
  std::optional<ffi::AnyBuffer> other = {};
  std::optional<PlanArray> source = {};
  bool out_pairs = false;  // the result has two elements in the place of each
};

// The accumulator type of the dtypes that are summed in a wider one.
inline bool is_wide(XlaType type, DType dtype) {
  const bool narrow = dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF8;
  return narrow && type == XlaType::F32;
}

inline ffi::Error fill_row_fold(const char* op, const RowFoldAttrs& at, const RowFoldOperands& in,
                                RowFoldArgs* a) {
  const Dims shape = in.out.dimensions();
  const Dims edges = in.edges.dimensions();
  const i64 axis = at.axis;
  JI_CHECK(data_fits(edges, shape, axis) && edges.size() == shape.size(), op, "y",
           "the result's shape off the axis", edges.size());
  PlanStrides plan;
  ffi::Error error = fill_csr(op, {in.ids, in.indptr, in.perm, in.tasks, at.identity}, shape,
                              at.plan_axes, &a->csr, &plan);
  if (error.failure()) return error;
  std::vector<i64> source;
  a->num_sources = edges[axis];
  if (in.source) {
    JI_CHECK(plan_fits(in.source->dimensions(), 1, at.plan_axes, shape) &&
                 last_size(*in.source) == a->csr.num_edges,
             op, "source", "one for each edge", last_size(*in.source));
    source = plan_strides(in.source->dimensions(), 1, shape.size(), at.plan_axes);
    a->source = in.source->typed_data();
  } else {
    JI_CHECK(edges[axis] == a->csr.num_edges, op, "y", "one row for each edge", edges[axis]);
  }
  JI_CHECK(shape[axis] == a->csr.num_rows, op, "indptr", "one more than the rows",
           last_size(in.indptr));
  const XlaType type_in = in.edges.element_type();
  SumType type;
  JI_CHECK(sum_type(type_in, &type), op, "y", "a dtype that can be summed", (int)type_in);
  if (at.float4) type = {DType::kF8, kFloat4, 1};
  const auto fits = [&](XlaType given, bool* wide) {
    *wide = given != type_in && is_wide(given, type.dtype);
    return given == type_in || *wide;
  };
  const XlaType type_out = in.out.element_type();
  const XlaType pair = type_in == XlaType::F64 ? XlaType::C128 : XlaType::C64;
  JI_CHECK(in.out_pairs ? type_out == pair : fits(type_out, &a->out_wide), op, "result",
           "y's dtype or its accumulator's, or pairs where they are asked for", (int)type_out);

  const DataLayout from = data_layout(edges, axis);
  const DataLayout to = data_layout(shape, axis);
  DataLayout row, other;
  if (in.row) {
    const Dims dims = in.row->dimensions();
    JI_CHECK(data_fits(dims, shape, axis) && dims[axis] == shape[axis], op, "row operand",
             "the result's shape", dims.size());
    JI_CHECK(fits(in.row->element_type(), &a->row_wide), op, "row operand",
             "y's dtype or its accumulator's", (int)in.row->element_type());
    row = data_layout(dims, axis, shape.size());
    a->row = in.row->untyped_data();
  }
  if (in.other) {
    const Dims dims = in.other->dimensions();
    JI_CHECK(data_fits(dims, shape, axis) && dims[axis] == a->csr.num_edges, op, "edge operand",
             "one row for each edge", dims.size());
    JI_CHECK(fits(in.other->element_type(), &a->other_wide), op, "edge operand",
             "y's dtype or its accumulator's", (int)in.other->element_type());
    other = data_layout(dims, axis, shape.size());
    a->other = in.other->untyped_data();
  }
  const Dims row_dims = in.row ? in.row->dimensions() : shape;
  const Dims other_dims = in.other ? in.other->dimensions() : shape;
  const Layout layout = layout_of(shape, axis, at.plan_axes, {edges, row_dims, other_dims});
  const size_t weight_rank = in.other ? other_dims.size() : row_dims.size();
  a->group = in.other || in.row ? group_of(layout, shape, weight_rank) : layout.width;
  JI_CHECK(!in.other || !in.row || row_dims.size() == shape.size() ||
               a->group == group_of(layout, shape, row_dims.size()),
           op, "row operand", "the axes of the edge operand, or the result's", row_dims.size());
  JI_CHECK(make_nest(layout,
                     {&from.stride, in.other ? &other.stride : nullptr,
                      in.row ? &row.stride : nullptr, &to.stride, &plan.ids, &plan.indptr,
                      &plan.perm, &plan.tasks, in.source ? &source : nullptr},
                     &a->nest),
           op, "y", "at most 24 separate batch axes", layout.loops.size());
  for (int d = 0; d < a->nest.rank; ++d)
    for (int k : {RowFoldArgs::kEdges, RowFoldArgs::kOther, RowFoldArgs::kRow, RowFoldArgs::kOut})
      a->nest.stride[d][k] *= type.parts;

  a->edges = in.edges.untyped_data();
  a->out = in.out.untyped_data();
  a->no_long_row = at.no_long_row;
  a->complex = type.parts == 2;
  a->width = layout.width * type.parts;
  a->group *= type.parts;
  a->edge_bytes = from.pitch * (i64)ffi::ByteWidth(type_in);
  if (in.other) a->other_bytes = other.pitch * (i64)ffi::ByteWidth(in.other->element_type());
  a->row_pitch = row.pitch * type.parts;
  a->out_pitch = to.pitch * type.parts;
  a->dtype = type.dtype;
  a->mini = type.mini;
  a->partials = in.partials.untyped_data();
  const i64 row_bytes = a->nest.slices * a->width * accumulator_bytes(type.dtype);
  if (!at.no_long_row) {
    a->num_partials = max_partials(a->csr.num_edges);
    JI_CHECK((i64)in.partials.size_bytes() >= a->num_partials * row_bytes, op, "partials",
             "room for every task of a long row", in.partials.size_bytes());
  }
  return ffi::Error::Success();
}

}  // namespace jax_index

// The attributes that RowFoldAttrs is made of, in its order.
#define JI_PLAN_ATTRS                          \
  .Attr<i64>("axis")                           \
      .Attr<ffi::Span<const i64>>("plan_axes") \
      .Attr<bool>("identity")                  \
      .Attr<bool>("no_long_row")
#define JI_ROW_FOLD_ATTRS JI_PLAN_ATTRS.Attr<bool>("float4")
