// SPDX-License-Identifier: Apache-2.0
#include "ffi/backend.h"
#include "ffi/plan.h"
#include "ops/static_arrays.h"

JI_DECLARE_RUN(StaticArraysArgs)

namespace jax_index {
namespace {

// The operands are static ones: with_static_operands has put them in their places.
ffi::Error static_arrays(ContextArgument context, ffi::RemainingArgs from, ffi::RemainingRets to) {
  StaticArraysArgs a;
  JI_CHECK(from.size() == to.size() && from.size() <= (size_t)a.kMost, "static_arrays", "operands",
           "one for each result", from.size());
  for (size_t k = 0; k < from.size(); ++k) {
    const auto source = from.get<PlanArray>(k);
    auto target = to.get<PlanArray>(k);
    JI_CHECK(source.has_value() && target.has_value() &&
                 source->element_count() == (*target)->element_count(),
             "static_arrays", "operands", "int32 arrays of the results' sizes", k);
    a.copies[a.count++] = {source->typed_data(), (*target)->typed_data(),
                           (i64)source->size_bytes()};
  }
  run_on(device_of(context), a);
  return launch_status("static_arrays");
}

}  // namespace

JI_HANDLER(static_arrays_handler, static_arrays,
           ffi::Ffi::Bind().Ctx<Context>().RemainingArgs().RemainingRets());

}  // namespace jax_index
