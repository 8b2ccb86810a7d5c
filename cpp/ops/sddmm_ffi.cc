// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "ffi/backend.h"
#include "ffi/dispatch.h"
#include "ffi/plan.h"
#include "ops/sddmm.h"

JI_DECLARE_RUN(SddmmArgs)

namespace jax_index {
namespace {

// x and y are [..., rows, groups..., depth...]; the result has their axes before depth.
ffi::Error sddmm(ContextArgument context, ffi::AnyBuffer x, ffi::AnyBuffer y,
                 ffi::RemainingArgs rest, ffi::Result<ffi::AnyBuffer> out, i64 axis,
                 ffi::Span<const i64> plan_axes, i64 depth_axes, bool ordered, bool x_indexed,
                 bool y_indexed, bool additive, double slope) {
  const char* op = "sddmm";
  SddmmArgs a;
  const Dims dims = x.dimensions();
  const Dims result = out->dimensions();
  JI_CHECK(depth_axes >= 0 && dims.size() == result.size() + depth_axes &&
               axis < (i64)result.size() && y.dimensions().size() == dims.size(),
           op, "x", "the result's axes and those of a dot", dims.size());
  // The shape that x and y are broadcast to.
  std::vector<int64_t> shape(result.begin(), result.end());
  for (size_t d = result.size(); d < dims.size(); ++d) shape.push_back(dims[d]);
  const Dims full(shape.data(), shape.size());
  JI_CHECK(data_fits(dims, full, axis) && data_fits(y.dimensions(), full, axis), op, "y",
           "x's shape off the axis", y.dimensions().size());
  for (size_t d = result.size(); d < dims.size(); ++d)
    JI_CHECK(y.dimensions()[d] == dims[d], op, "y", "x's features", y.dimensions()[d]);
  JI_CHECK(rest.size() == (size_t)additive + ordered + x_indexed + y_indexed, op, "operands",
           "as many as named", rest.size());
  DataLayout from_att;
  Dims att_dims = dims;
  if (additive) {
    const ffi::AnyBuffer att = *rest.get<ffi::AnyBuffer>(0);
    att_dims = att.dimensions();
    JI_CHECK(att_dims.size() == dims.size() && att_dims[axis] == 1 &&
                 data_fits(att_dims, full, axis) && att.element_type() == x.element_type(),
             op, "att", "one row of x's features", att_dims.size());
    for (size_t d = result.size(); d < dims.size(); ++d)
      JI_CHECK(att_dims[d] == dims[d], op, "att", "x's features", att_dims[d]);
    from_att = data_layout(att_dims, axis);
    a.att = att.untyped_data();
    a.slope = slope;
  }
  a.num_edges = result[axis];
  a.num_x = dims[axis];
  a.num_y = y.dimensions()[axis];
  std::vector<i64> strides[3];
  const i32** arrays[] = {&a.order, &a.x_rows, &a.y_rows};
  const bool given[] = {ordered, x_indexed, y_indexed};
  size_t next = additive ? 1 : 0;
  for (int k = 0; k < 3; ++k) {
    if (!given[k]) continue;
    const PlanArray array = *rest.get<PlanArray>(next++);
    JI_CHECK(plan_fits(array.dimensions(), 1, plan_axes, full) && last_size(array) == a.num_edges,
             op, "indices", "one for each edge", array.dimensions().size());
    strides[k] = plan_strides(array.dimensions(), 1, full.size(), plan_axes);
    *arrays[k] = array.typed_data();
  }
  SumType type;
  JI_CHECK(sum_type(x.element_type(), &type) && type.dtype != DType::kF8 &&
               type.dtype != DType::kU8 && type.dtype != DType::kU16,
           op, "x", "a float of 16 bits and more, or integers of 32 and more",
           (int)x.element_type());
  const bool is_real = type.parts == 1;
  const bool is_float = is_real && type.dtype != DType::kU32 && type.dtype != DType::kU64;
  JI_CHECK(!additive || is_float, op, "x", "a float", (int)x.element_type());
  JI_CHECK(y.element_type() == x.element_type(), op, "y", "x's dtype", (int)y.element_type());
  a.out_wide = out->element_type() != x.element_type();
  JI_CHECK(!a.out_wide || (is_real && out->element_type() == XlaType::F32 &&
                           (type.dtype == DType::kF16 || type.dtype == DType::kBF16)),
           op, "result", "x's dtype or its accumulator's", (int)out->element_type());
  if (out->element_count() == 0) return ffi::Error::Success();

  const DataLayout from_x = data_layout(dims, axis);
  const DataLayout from_y = data_layout(y.dimensions(), axis);
  const DataLayout to = data_layout(result, axis, full.size());
  const Layout layout = layout_of(full, axis, plan_axes, {dims, y.dimensions(), att_dims});
  // A plan that is batched along an axis of the dot would mix dots; Python never asks for it.
  JI_CHECK(layout.inner <= (i64)result.size(), op, "x", "batch axes before those of a dot",
           layout.inner);
  a.complex = !is_real;
  a.depth = product(full, result.size(), full.size()) * type.parts;
  a.groups = product(full, layout.inner, result.size());
  JI_CHECK(make_nest(layout,
                     {&from_x.stride, &from_y.stride, &to.stride, ordered ? &strides[0] : nullptr,
                      x_indexed ? &strides[1] : nullptr, y_indexed ? &strides[2] : nullptr,
                      additive ? &from_att.stride : nullptr},
                     &a.nest),
           op, "x", "at most 24 separate batch axes", layout.loops.size());
  for (int d = 0; d < a.nest.rank; ++d)
    for (int k : {SddmmArgs::kX, SddmmArgs::kY, SddmmArgs::kOut}) a.nest.stride[d][k] *= type.parts;
  a.x = x.untyped_data();
  a.y = y.untyped_data();
  a.out = out->untyped_data();
  a.x_pitch = from_x.pitch * type.parts;
  a.y_pitch = from_y.pitch * type.parts;
  // One row of y for all edges is read again for each.
  if (!y_indexed && a.num_y == 1) {
    a.num_y = a.num_edges;
    a.y_pitch = 0;
  }
  a.out_pitch = to.pitch * type.parts;
  a.dtype = type.dtype;
  run_on(device_of(context), a);
  return launch_status(op);
}

}  // namespace

JI_HANDLER(sddmm_handler, sddmm,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<ffi::AnyBuffer>()
               .Arg<ffi::AnyBuffer>()
               .RemainingArgs()
               .Ret<ffi::AnyBuffer>()
               .Attr<i64>("axis")
               .Attr<ffi::Span<const i64>>("plan_axes")
               .Attr<i64>("depth_axes")
               .Attr<bool>("ordered")
               .Attr<bool>("x_indexed")
               .Attr<bool>("y_indexed")
               .Attr<bool>("additive")
               .Attr<double>("slope"));

}  // namespace jax_index
