// SPDX-License-Identifier: Apache-2.0
#include "ffi/row_fold.h"
#include "ops/segment_extremum.h"

JI_DECLARE_RUN(SegmentExtremumArgs)

namespace jax_index {
namespace {

// False where numbers of `type` have no order that a key can hold.
bool key_format(XlaType type, MiniFloat* out) {
  switch (type) {
    case XlaType::PRED:
    case XlaType::U8:
    case XlaType::U16:
    case XlaType::U32:
    case XlaType::U64:
      out->special = MiniFloat::kUnsignedKey;
      return true;
    case XlaType::S8:
    case XlaType::S16:
    case XlaType::S32:
    case XlaType::S64:
      out->special = MiniFloat::kSignedKey;
      return true;
    case XlaType::F16:
      out->mantissa_bits = 10;
      break;
    case XlaType::BF16:
      out->mantissa_bits = 7;
      break;
    case XlaType::F32:
      out->mantissa_bits = 23;
      break;
    case XlaType::F64:
      out->mantissa_bits = 52;
      break;
    default:
      return false;
  }
  out->special = MiniFloat::kFloatKey;
  return true;
}

ffi::Error segment_extremum(ContextArgument context, ffi::AnyBuffer y, PlanArray ids,
                            PlanArray indptr, PlanArray perm, PlanArray tasks,
                            ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> partials,
                            i64 axis, ffi::Span<const i64> plan_axes, bool identity,
                            bool no_long_row, bool smallest) {
  SegmentExtremumArgs a;
  const RowFoldAttrs at = {axis, plan_axes, identity, no_long_row, false};
  const RowFoldOperands in = {y, ids, indptr, perm, tasks, *out, *partials};
  ffi::Error error = fill_row_fold("segment_extremum", at, in, &a);
  if (error.failure() || out->element_count() == 0) return error;
  a.mini = {};
  JI_CHECK(key_format(y.element_type(), &a.mini) && y.element_type() == out->element_type(),
           "segment_extremum", "y", "an ordered dtype", (int)y.element_type());
  a.mini.bias = smallest ? 1 : 0;
  a.bytes = item_bytes(y.element_type());
  run_on(device_of(context), a);
  return launch_status("segment_extremum");
}

}  // namespace

JI_HANDLER(segment_extremum_handler, segment_extremum,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<ffi::AnyBuffer>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Ret<ffi::AnyBuffer>()
               .Ret<ffi::AnyBuffer>() JI_PLAN_ATTRS.Attr<bool>("smallest"));

}  // namespace jax_index
