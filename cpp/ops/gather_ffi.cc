// SPDX-License-Identifier: Apache-2.0
#include "ffi/backend.h"
#include "ffi/dispatch.h"
#include "ffi/layout.h"
#include "ops/gather.h"

JI_DECLARE_RUN(GatherArgs)

namespace jax_index {
namespace {

ffi::Error gather(ContextArgument context, ffi::AnyBuffer x, ffi::Buffer<ffi::S32> ids,
                  ffi::Result<ffi::AnyBuffer> out, i64 axis, ffi::Span<const i64> plan_axes,
                  i64 fill_low, i64 fill_high) {
  const Dims shape = out->dimensions();
  JI_CHECK(data_fits(x.dimensions(), shape, axis), "gather", "x", "the result's shape off the axis",
           x.dimensions().size());
  JI_CHECK(plan_fits(ids.dimensions(), 1, plan_axes, shape), "gather", "ids", "[..., num_edges]",
           ids.dimensions().size());
  JI_CHECK(x.element_type() == out->element_type(), "gather", "x", "the result's dtype",
           (int)x.element_type());
  const i64 num_edges = ids.dimensions()[ids.dimensions().size() - 1];
  JI_CHECK(shape[axis] == num_edges, "gather", "ids", "one id for each row of the result",
           num_edges);
  if (out->element_count() == 0) return ffi::Error::Success();

  const i64 item = item_bytes(x.element_type());
  DataLayout from = data_layout(x.dimensions(), axis);
  DataLayout to = data_layout(shape, axis);
  for (auto* layout : {&from, &to})
    for (i64& stride : layout->stride) stride *= item;
  const std::vector<i64> plan = plan_strides(ids.dimensions(), 1, shape.size(), plan_axes);
  const Layout layout = layout_of(shape, axis, plan_axes, {x.dimensions()});

  GatherArgs a;
  JI_CHECK(make_nest(layout, {&from.stride, &plan, &to.stride}, &a.nest), "gather", "x",
           "at most 12 separate batch axes", layout.loops.size());
  a.x = x.untyped_data();
  a.ids = ids.typed_data();
  a.out = out->untyped_data();
  for (i64 k = 0; k < 16; ++k) {
    const i64 byte = k % item;
    a.fill[k] = (u8)((u64)(byte < 8 ? fill_low : fill_high) >> (8 * (byte % 8)));
  }
  a.num_rows = x.dimensions()[axis];
  a.num_edges = num_edges;
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
               .Arg<ffi::Buffer<ffi::S32>>()
               .Ret<ffi::AnyBuffer>()
               .Attr<i64>("axis")
               .Attr<ffi::Span<const i64>>("plan_axes")
               .Attr<i64>("fill_low")
               .Attr<i64>("fill_high"));

}  // namespace jax_index
