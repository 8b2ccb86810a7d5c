// SPDX-License-Identifier: Apache-2.0
#include "ffi/row_fold.h"
#include "ops/spmm.h"

JI_DECLARE_RUN(SpmmArgs)

namespace jax_index {
namespace {

ffi::Error spmm(ContextArgument context, ffi::AnyBuffer x, PlanArray ids, PlanArray indptr,
                PlanArray perm, PlanArray tasks, PlanArray source, ffi::RemainingArgs rest,
                ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> partials, i64 axis,
                ffi::Span<const i64> plan_axes, bool identity, bool no_long_row, bool weighted,
                bool divided, i64 additive, double slope) {
  SpmmArgs a;
  const RowFoldAttrs at = {axis, plan_axes, identity, no_long_row, false};
  RowFoldOperands in = {x, ids, indptr, perm, tasks, *out, *partials};
  const bool by_row = divided || additive;
  JI_CHECK(rest.size() == (size_t)weighted + by_row, "spmm", "operands", "as many as named",
           rest.size());
  in.source = source;
  if (weighted) in.other = *rest.get<ffi::AnyBuffer>(0);
  if (by_row) in.row = *rest.get<ffi::AnyBuffer>(weighted ? 1 : 0);
  ffi::Error error = fill_row_fold("spmm", at, in, &a);
  if (error.failure() || out->element_count() == 0) return error;
  const bool known = a.dtype != DType::kF8 && a.dtype != DType::kU8 && a.dtype != DType::kU16;
  JI_CHECK(known, "spmm", "x", "a float of 16 bits and more, or integers of 32 and more",
           (int)x.element_type());
  JI_CHECK(!a.complex || !by_row, "spmm", "row operand", "none of complex numbers", by_row);
  const bool narrow = a.dtype == DType::kF16 || a.dtype == DType::kBF16;
  JI_CHECK(!divided || !narrow || a.row_wide, "spmm", "divisor", "of the accumulator type",
           (int)in.row->element_type());
  const bool is_float = a.dtype != DType::kU32 && a.dtype != DType::kU64;
  JI_CHECK(additive >= 0 && additive <= 2 && (!additive || (is_float && weighted && !divided)),
           "spmm", "additive", "0, or 1 or 2 with weighted floats", additive);
  a.additive = (i32)additive;
  a.slope = slope;
  run_on(device_of(context), a);
  return launch_status("spmm");
}

}  // namespace

JI_HANDLER(spmm_handler, spmm,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<ffi::AnyBuffer>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .RemainingArgs()
               .Ret<ffi::AnyBuffer>()
               .Ret<ffi::AnyBuffer>() JI_PLAN_ATTRS.Attr<bool>("weighted")
               .Attr<bool>("divided")
               .Attr<i64>("additive")
               .Attr<double>("slope"));

}  // namespace jax_index
