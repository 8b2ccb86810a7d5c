// SPDX-License-Identifier: Apache-2.0
// plan_of_ids: build_plan as a call of a program: the plan of ids that are known only when it runs.
// Of the CPU alone; XLA sorts well on a GPU.
#include <memory>

#include "ffi/backend.h"
#include "ffi/plan.h"
#include "plan/plan.h"

namespace jax_index {
namespace {

// ids are [..., num_edges], -1 where they name no row; the results have the same leading axes.
ffi::Error plan_of_ids(ffi::ThreadPool pool, PlanArray ids, ffi::Result<PlanArray> indptr,
                       ffi::Result<PlanArray> perm, ffi::Result<PlanArray> tasks) {
  const char* op = "plan_of_ids";
  const size_t rank = ids.dimensions().size();
  JI_CHECK(rank > 0 && indptr->dimensions().size() == rank && perm->dimensions().size() == rank &&
               tasks->dimensions().size() == rank + 1,
           op, "ids", "[..., num_edges]", rank);
  const i64 num_edges = last_size(ids), num_rows = last_size(*indptr) - 1;
  i64 plans = 1;
  for (size_t d = 0; d + 1 < rank; ++d) {
    const i64 size = ids.dimensions()[d];
    JI_CHECK(indptr->dimensions()[d] == size && perm->dimensions()[d] == size &&
                 tasks->dimensions()[d] == size,
             op, "results", "the leading axes of the ids", d);
    plans *= size;
  }
  JI_CHECK(num_rows >= 0 && last_size(*perm) == num_edges && last_size(*tasks) == 2 &&
               last_size(*tasks, 2) == max_tasks(num_edges),
           op, "results", "of the sizes of a plan", num_rows);
  const std::unique_ptr<i32[]> rows(new i32[(size_t)num_edges]);
  for (i64 k = 0; k < plans; ++k) {
    const PlanArrays out = {rows.get(), indptr->typed_data() + k * (num_rows + 1),
                            perm->typed_data() + k * num_edges,
                            tasks->typed_data() + k * 2 * max_tasks(num_edges)};
    build_plan(ids.typed_data() + k * num_edges, IdType::kI32, num_edges, num_rows, true,
               (int)pool.num_threads(), out);
  }
  return ffi::Error::Success();
}

}  // namespace

JI_HANDLER(plan_of_ids_handler, plan_of_ids,
           ffi::Ffi::Bind()
               .Ctx<Context>()
               .Arg<PlanArray>()
               .Ret<PlanArray>()
               .Ret<PlanArray>()
               .Ret<PlanArray>());

}  // namespace jax_index
