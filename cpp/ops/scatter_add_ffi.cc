// SPDX-License-Identifier: Apache-2.0
#include "ffi/row_fold.h"
#include "ops/scatter_add.h"

JI_DECLARE_RUN(ScatterAddArgs)

namespace jax_index {
namespace {

ffi::Error scatter_add(ContextArgument context, ffi::AnyBuffer y, PlanArray ids, PlanArray indptr,
                       PlanArray perm, PlanArray tasks, ffi::Result<ffi::AnyBuffer> out,
                       ffi::Result<ffi::AnyBuffer> partials, i64 axis,
                       ffi::Span<const i64> plan_axes, bool identity, bool no_long_row,
                       bool float4) {
  ScatterAddArgs a;
  const RowFoldAttrs at = {axis, plan_axes, identity, no_long_row, float4};
  const RowFoldOperands in = {y, ids, indptr, perm, tasks, *out, *partials};
  ffi::Error error = fill_row_fold("scatter_add", at, in, &a);
  if (error.failure() || out->element_count() == 0) return error;
  run_on(device_of(context), a);
  return launch_status("scatter_add");
}

}  // namespace

JI_HANDLER(scatter_add_handler, scatter_add,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<ffi::AnyBuffer>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Ret<ffi::AnyBuffer>()
               .Ret<ffi::AnyBuffer>() JI_ROW_FOLD_ATTRS);

}  // namespace jax_index
