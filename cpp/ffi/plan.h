// SPDX-License-Identifier: Apache-2.0
// The arrays of a plan as operands of a handler.
#pragma once

#include "core/csr.h"
#include "ffi/layout.h"

namespace jax_index {

using PlanArray = xla::ffi::Buffer<xla::ffi::S32>;

inline i64 last_size(const PlanArray& array, size_t from_end = 1) {
  const auto dims = array.dimensions();
  return dims[dims.size() - from_end];
}

struct PlanOperands {
  PlanArray ids;     // [..., num_edges]
  PlanArray indptr;  // [..., num_rows + 1]
  PlanArray perm;    // [..., num_edges]
  PlanArray tasks;   // [..., max_tasks, 2]
  bool identity;     // perm is the identity
};

// Strides of each array along the data axes.
struct PlanStrides {
  std::vector<i64> ids, indptr, perm, tasks;
};

// Fills the view of the first plan of a batch.
inline xla::ffi::Error fill_csr(const char* op, const PlanOperands& plan, Dims shape,
                                Dims plan_axes, CsrView* csr, PlanStrides* strides) {
  const auto take = [&](const PlanArray& array, i64 rank, std::vector<i64>* stride) {
    const bool fits = plan_fits(array.dimensions(), rank, plan_axes, shape);
    if (fits) *stride = plan_strides(array.dimensions(), rank, shape.size(), plan_axes);
    return fits;
  };
  const auto rank = [](const PlanArray& array) { return array.dimensions().size(); };
  JI_CHECK(take(plan.ids, 1, &strides->ids), op, "ids", "[..., num_edges]", rank(plan.ids));
  JI_CHECK(take(plan.indptr, 1, &strides->indptr), op, "indptr", "[..., rows + 1]",
           rank(plan.indptr));
  JI_CHECK(take(plan.perm, 1, &strides->perm), op, "perm", "[..., num_edges]", rank(plan.perm));
  JI_CHECK(take(plan.tasks, 2, &strides->tasks), op, "tasks", "[..., tasks, 2]", rank(plan.tasks));
  JI_CHECK(last_size(plan.tasks) == 2, op, "tasks", "pairs", last_size(plan.tasks));
  JI_CHECK(last_size(plan.indptr) > 0, op, "indptr", "one more than the rows",
           last_size(plan.indptr));
  JI_CHECK(last_size(plan.ids) == last_size(plan.perm), op, "ids", "one for each edge",
           last_size(plan.ids));
  csr->ids = plan.ids.typed_data();
  csr->indptr = plan.indptr.typed_data();
  csr->perm = plan.identity ? nullptr : plan.perm.typed_data();
  csr->tasks = plan.tasks.typed_data();
  csr->num_rows = last_size(plan.indptr) - 1;
  csr->num_edges = last_size(plan.perm);
  csr->num_tasks = last_size(plan.tasks, 2);
  return xla::ffi::Error::Success();
}

}  // namespace jax_index
