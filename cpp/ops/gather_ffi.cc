// SPDX-License-Identifier: Apache-2.0
#include "ffi/backend.h"
#include "ffi/dispatch.h"
#include "ffi/plan.h"
#include "ops/gather.h"

JI_DECLARE_RUN(GatherArgs)

namespace jax_index {
namespace {

ffi::Error gather(ContextArgument context, ffi::AnyBuffer x, PlanArray ids, PlanArray indptr,
                  PlanArray perm, PlanArray tasks, ffi::Result<ffi::AnyBuffer> out, i64 axis,
                  ffi::Span<const i64> plan_axes, bool identity, bool no_long_row, i64 fill_low,
                  i64 fill_high) {
  const Dims shape = out->dimensions();
  JI_CHECK(data_fits(x.dimensions(), shape, axis) && x.dimensions().size() == shape.size(),
           "gather", "x", "the result's shape off the axis", x.dimensions().size());
  JI_CHECK(x.element_type() == out->element_type(), "gather", "x", "the result's dtype",
           (int)x.element_type());
  GatherArgs a;
  PlanStrides plan;
  ffi::Error error =
      fill_csr("gather", {ids, indptr, perm, tasks, identity}, shape, plan_axes, &a.csr, &plan);
  if (error.failure()) return error;
  JI_CHECK(shape[axis] == a.csr.num_edges, "gather", "ids", "one id for each row of the result",
           last_size(ids));
  JI_CHECK(x.dimensions()[axis] == a.csr.num_rows, "gather", "x", "the plan's rows",
           x.dimensions()[axis]);
  if (out->element_count() == 0) return ffi::Error::Success();

  const i64 item = item_bytes(x.element_type());
  DataLayout from = data_layout(x.dimensions(), axis);
  DataLayout to = data_layout(shape, axis);
  for (auto* layout : {&from, &to})
    for (i64& stride : layout->stride) stride *= item;
  const Layout layout = layout_of(shape, axis, plan_axes, {x.dimensions()});
  JI_CHECK(make_nest(layout,
                     {&from.stride, &plan.ids, &to.stride, &plan.indptr, &plan.perm, &plan.tasks},
                     &a.nest),
           "gather", "x", "at most 24 separate batch axes", layout.loops.size());
  a.x = x.untyped_data();
  a.out = out->untyped_data();
  for (i64 k = 0; k < 16; ++k) {
    const i64 byte = k % item;
    a.fill[k] = (u8)((u64)(byte < 8 ? fill_low : fill_high) >> (8 * (byte % 8)));
  }
  a.no_long_row = no_long_row;
  a.width = layout.width * item;
  a.x_pitch = from.pitch * item;
  a.out_pitch = to.pitch * item;
  run_on(device_of(context), a);
  return launch_status("gather");
}

}  // namespace

JI_HANDLER(gather_handler, gather,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<ffi::AnyBuffer>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Ret<ffi::AnyBuffer>()
               .Attr<i64>("axis")
               .Attr<ffi::Span<const i64>>("plan_axes")
               .Attr<bool>("identity")
               .Attr<bool>("no_long_row")
               .Attr<i64>("fill_low")
               .Attr<i64>("fill_high"));

}  // namespace jax_index
