// SPDX-License-Identifier: Apache-2.0
#include "ffi/row_fold.h"
#include "ops/row_map.h"

JI_DECLARE_RUN(RowMapArgs)

namespace jax_index {
namespace {

bool is_real_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

ffi::Error row_map(ContextArgument context, ffi::AnyBuffer y, PlanArray ids, PlanArray indptr,
                   PlanArray perm, PlanArray tasks, ffi::RemainingArgs rest,
                   ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> partials, i64 axis,
                   ffi::Span<const i64> plan_axes, bool identity, bool no_long_row, i64 map,
                   bool by_row, bool by_edge, bool mean) {
  RowMapArgs a;
  const RowFoldAttrs at = {axis, plan_axes, identity, no_long_row, false};
  RowFoldOperands in = {y, ids, indptr, perm, tasks, *out, *partials};
  JI_CHECK(rest.size() == (size_t)by_row + by_edge, "row_map", "operands", "as many as named",
           rest.size());
  if (by_row) in.row = *rest.get<ffi::AnyBuffer>(0);
  if (by_edge) in.other = *rest.get<ffi::AnyBuffer>(by_row ? 1 : 0);
  ffi::Error error = fill_row_fold("row_map", at, in, &a);
  if (error.failure() || out->element_count() == 0) return error;
  JI_CHECK(is_real_float(a.dtype) && y.element_type() != XlaType::C64 &&
               y.element_type() != XlaType::C128,
           "row_map", "y", "a real float", (int)y.element_type());
  const bool needs_row = map != (i64)RowMap::kValue && map != (i64)RowMap::kProduct;
  const bool needs_edge = map == (i64)RowMap::kProduct || map == (i64)RowMap::kTieProduct;
  JI_CHECK(map >= 0 && map <= (i64)RowMap::kTieProduct && needs_row == by_row &&
               needs_edge == by_edge && (rest.size() == 0 || a.group == 1),
           "row_map", "map", "one that fits the operands", map);
  a.map = (RowMap)map;
  a.mean = mean;
  run_on(device_of(context), a);
  return launch_status("row_map");
}

}  // namespace

JI_HANDLER(row_map_handler, row_map,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<ffi::AnyBuffer>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .Arg<PlanArray>()
               .RemainingArgs()
               .Ret<ffi::AnyBuffer>()
               .Ret<ffi::AnyBuffer>() JI_PLAN_ATTRS.Attr<i64>("map")
               .Attr<bool>("by_row")
               .Attr<bool>("by_edge")
               .Attr<bool>("mean"));

}  // namespace jax_index
