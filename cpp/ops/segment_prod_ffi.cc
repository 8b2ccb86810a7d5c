// SPDX-License-Identifier: Apache-2.0
#include "ffi/row_fold.h"
#include "ops/segment_prod.h"

JI_DECLARE_RUN(SegmentProdArgs)

namespace jax_index {
namespace {

ffi::Error segment_prod(ContextArgument context, ffi::AnyBuffer y, PlanArray ids, PlanArray indptr,
                        PlanArray perm, PlanArray tasks, ffi::Result<ffi::AnyBuffer> out,
                        ffi::Result<ffi::AnyBuffer> partials, i64 axis,
                        ffi::Span<const i64> plan_axes, bool identity, bool no_long_row,
                        bool scaled) {
  SegmentProdArgs a;
  const RowFoldAttrs at = {axis, plan_axes, identity, no_long_row, false};
  RowFoldOperands in = {y, ids, indptr, perm, tasks, *out, *partials};
  in.out_pairs = scaled;
  ffi::Error error = fill_row_fold("segment_prod", at, in, &a);
  if (error.failure() || out->element_count() == 0) return error;
  const bool known = a.dtype == DType::kF32 || a.dtype == DType::kF64 || a.dtype == DType::kU32 ||
                     a.dtype == DType::kU64;
  JI_CHECK(known && !a.complex && !a.out_wide, "segment_prod", "y", "32 or 64-bit real numbers",
           (int)y.element_type());
  const bool is_float = a.dtype == DType::kF32 || a.dtype == DType::kF64;
  // An accumulator is a pair, too.
  const i64 room = a.num_partials * a.nest.slices * a.width * 2 * accumulator_bytes(a.dtype);
  JI_CHECK(!scaled || (is_float && (i64)partials->size_bytes() >= room), "segment_prod", "partials",
           "room for pairs of floats", partials->size_bytes());
  a.scaled = scaled;
  run_on(device_of(context), a);
  return launch_status("segment_prod");
}

}  // namespace

JI_HANDLER(segment_prod_handler, segment_prod,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<ffi::AnyBuffer>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Ret<ffi::AnyBuffer>()
               .Ret<ffi::AnyBuffer>() JI_PLAN_ATTRS.Attr<bool>("scaled"));

}  // namespace jax_index
