// SPDX-License-Identifier: Apache-2.0
#include "ffi/row_fold.h"
#include "ops/segment_prod.h"

JI_DECLARE_RUN(SegmentProdArgs)

namespace jax_index {
namespace {

ffi::Error segment_prod(ContextArgument context, ffi::AnyBuffer y, PlanArray ids, PlanArray indptr,
                        PlanArray perm, PlanArray tasks, ffi::Result<ffi::AnyBuffer> out,
                        ffi::Result<ffi::AnyBuffer> partials, i64 axis,
                        ffi::Span<const i64> plan_axes, bool identity, bool no_long_row) {
  SegmentProdArgs a;
  const RowFoldAttrs at = {axis, plan_axes, identity, no_long_row, false};
  const RowFoldOperands in = {y, ids, indptr, perm, tasks, *out, *partials};
  ffi::Error error = fill_row_fold("segment_prod", at, in, &a);
  if (error.failure() || out->element_count() == 0) return error;
  const bool known = a.dtype == DType::kF32 || a.dtype == DType::kF64 || a.dtype == DType::kU32 ||
                     a.dtype == DType::kU64;
  JI_CHECK(known && y.element_type() == out->element_type() && y.element_type() != XlaType::C64 &&
               y.element_type() != XlaType::C128,
           "segment_prod", "y", "32 or 64-bit real numbers", (int)y.element_type());
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
               .Ret<ffi::AnyBuffer>() JI_PLAN_ATTRS);

}  // namespace jax_index
