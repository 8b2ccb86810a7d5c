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
  PlanArray indptr;  // [..., num_rows + 1]
  PlanArray perm;    // [..., num_edges]
  PlanArray tasks;   // [..., max_tasks, 2]
  bool identity;     // perm is the identity
};

// Fills the view of the first plan of a batch, and each array's strides along the data axes.
inline xla::ffi::Error fill_csr(const char* op, const PlanOperands& plan, Dims shape,
                                Dims plan_axes, CsrView* csr, std::vector<i64>* indptr,
                                std::vector<i64>* perm, std::vector<i64>* tasks) {
  JI_CHECK(plan_fits(plan.indptr.dimensions(), 1, plan_axes, shape), op, "indptr",
           "[..., rows + 1]", plan.indptr.dimensions().size());
  JI_CHECK(plan_fits(plan.perm.dimensions(), 1, plan_axes, shape), op, "perm", "[..., num_edges]",
           plan.perm.dimensions().size());
  JI_CHECK(plan_fits(plan.tasks.dimensions(), 2, plan_axes, shape), op, "tasks", "[..., tasks, 2]",
           plan.tasks.dimensions().size());
  JI_CHECK(last_size(plan.tasks) == 2, op, "tasks", "pairs", last_size(plan.tasks));
  JI_CHECK(last_size(plan.indptr) > 0, op, "indptr", "one more than the rows",
           last_size(plan.indptr));
  csr->indptr = plan.indptr.typed_data();
  csr->perm = plan.identity ? nullptr : plan.perm.typed_data();
  csr->tasks = plan.tasks.typed_data();
  csr->num_rows = last_size(plan.indptr) - 1;
  csr->num_edges = last_size(plan.perm);
  csr->num_tasks = last_size(plan.tasks, 2);
  *indptr = plan_strides(plan.indptr.dimensions(), 1, shape.size(), plan_axes);
  *perm = plan_strides(plan.perm.dimensions(), 1, shape.size(), plan_axes);
  *tasks = plan_strides(plan.tasks.dimensions(), 2, shape.size(), plan_axes);
  return xla::ffi::Error::Success();
}

}  // namespace jax_index
