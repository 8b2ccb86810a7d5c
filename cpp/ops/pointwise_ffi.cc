// SPDX-License-Identifier: Apache-2.0
#include "ffi/backend.h"
#include "ffi/dispatch.h"
#include "ffi/plan.h"
#include "ops/pointwise.h"

JI_DECLARE_RUN(PointwiseArgs)

namespace jax_index {
namespace {

bool float_type(XlaType type, DType* out) {
  SumType sum;
  if (!sum_type(type, &sum) || sum.parts != 1) return false;
  *out = sum.dtype;
  return sum.dtype == DType::kF32 || sum.dtype == DType::kF64 || sum.dtype == DType::kF16 ||
         sum.dtype == DType::kBF16;
}

ffi::Error pointwise(ContextArgument context, ffi::RemainingArgs rest,
                     ffi::Result<ffi::AnyBuffer> out, i64 axis, ffi::Span<const i64> plan_axes,
                     i64 function, bool indexed, i64 num_rows, ffi::Span<const i64> slots,
                     ffi::Span<const i64> by_row, ffi::Span<const double> parameters) {
  const char* op = "pointwise";
  PointwiseArgs a;
  const Dims shape = out->dimensions();
  JI_CHECK(axis >= 0 && axis < (i64)shape.size(), op, "axis", "one of the result's", axis);
  const i64 arity = (i64)slots.size();
  JI_CHECK(arity >= 1 && arity <= PointwiseArgs::kMaxOperands &&
               rest.size() == (size_t)arity + indexed && by_row.size() == (size_t)arity,
           op, "operands", "as many as named", rest.size());
  JI_CHECK(parameters.size() <= PointwiseArgs::kMaxParameters, op, "parameters", "at most 4",
           parameters.size());
  JI_CHECK(function >= 0 && function <= (i64)Function::kCopy, op, "function", "one of its numbers",
           function);
  JI_CHECK(float_type(out->element_type(), &a.out_dtype), op, "result",
           "a float of 16 bits or more", (int)out->element_type());
  a.num_edges = shape[axis];
  a.num_rows = indexed ? num_rows : a.num_edges;
  a.function = (i32)function;
  for (size_t k = 0; k < parameters.size(); ++k) a.parameter[k] = parameters[k];
  std::vector<DataLayout> layouts;
  std::vector<const std::vector<i64>*> strides(PointwiseArgs::kArrays, nullptr);
  i64 inner = axis + 1;
  for (i64 p : plan_axes) inner = std::max(inner, p + 1);
  for (i64 k = 0; k < arity; ++k) {
    const ffi::AnyBuffer operand = *rest.get<ffi::AnyBuffer>(k);
    const Dims dims = operand.dimensions();
    JI_CHECK(slots[k] >= 0 && slots[k] < PointwiseArgs::kMaxOperands, op, "slots",
             "an argument of the function", slots[k]);
    PointwiseOperand& in = a.in[slots[k]];
    in.by_row = by_row[k] != 0;
    JI_CHECK(data_fits(dims, shape, axis), op, "operand", "the result's axes", dims.size());
    // One row for all edges is read again for each.
    const bool shared = !in.by_row && dims[axis] == 1;
    JI_CHECK(shared || dims[axis] == (in.by_row ? a.num_rows : a.num_edges), op, "operand",
             "a row for each edge or node", dims[axis]);
    JI_CHECK(float_type(operand.element_type(), &in.dtype), op, "operand",
             "a float of 16 bits or more", (int)operand.element_type());
    in.data = operand.untyped_data();
    layouts.push_back(data_layout(dims, axis, shape.size()));
    in.pitch = shared ? 0 : layouts.back().pitch;
    inner = layout_of(shape, inner - 1, plan_axes, {dims}).inner;
  }
  // Every operand has the same loops around a row.
  Layout layout;
  layout.inner = inner;
  layout.width = product(shape, inner, shape.size());
  for (i64 d = 0; d < inner; ++d) {
    if (d == axis) continue;
    layout.loops.push_back(d);
    layout.size.push_back(shape[d]);
  }
  for (i64 k = 0; k < arity; ++k) {
    strides[PointwiseArgs::kIn + slots[k]] = &layouts[k].stride;
    a.in[slots[k]].group =
        group_of(layout, shape, (*rest.get<ffi::AnyBuffer>(k)).dimensions().size());
  }
  std::vector<i64> ids_stride;
  if (indexed) {
    const PlanArray ids = *rest.get<PlanArray>(arity);
    JI_CHECK(plan_fits(ids.dimensions(), 1, plan_axes, shape) && last_size(ids) == a.num_edges, op,
             "ids", "one for each edge", last_size(ids));
    ids_stride = plan_strides(ids.dimensions(), 1, shape.size(), plan_axes);
    strides[PointwiseArgs::kIds] = &ids_stride;
    a.ids = ids.typed_data();
  }
  const DataLayout to = data_layout(shape, axis);
  strides[PointwiseArgs::kOut] = &to.stride;
  JI_CHECK(make_nest(layout, strides, &a.nest), op, "operand", "at most 24 separate batch axes",
           layout.loops.size());
  a.out = out->untyped_data();
  a.width = layout.width;
  a.out_pitch = to.pitch;
  if (out->element_count() == 0) return ffi::Error::Success();
  run_on(device_of(context), a);
  return launch_status(op);
}

}  // namespace

JI_HANDLER(pointwise_handler, pointwise,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .RemainingArgs()
               .Ret<ffi::AnyBuffer>()
               .Attr<i64>("axis")
               .Attr<ffi::Span<const i64>>("plan_axes")
               .Attr<i64>("function")
               .Attr<bool>("indexed")
               .Attr<i64>("num_rows")
               .Attr<ffi::Span<const i64>>("slots")
               .Attr<ffi::Span<const i64>>("by_row")
               .Attr<ffi::Span<const double>>("parameters"));

}  // namespace jax_index
