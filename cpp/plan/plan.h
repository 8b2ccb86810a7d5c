// SPDX-License-Identifier: Apache-2.0
// Builds a plan on the host: a stable counting sort in O(edges + rows), on several threads. Knows
// nothing of Python or XLA.
#pragma once

#include "core/csr.h"

namespace jax_index {

enum class IdType { kI8, kI16, kI32, kI64, kU8, kU16, kU32, kU64 };

struct PlanArrays {
  i32* ids = nullptr;     // [num_edges]: the row of each edge, -1 where it has none
  i32* indptr = nullptr;  // [num_rows + 1]
  i32* perm = nullptr;    // [num_edges]: edges by row, in the caller's order; dropped ones last
  i32* tasks = nullptr;   // [max_tasks(num_edges), 2]
};

struct PlanFacts {
  i64 first_bad = -1;  // position of the first id outside [0, num_rows)
  bool identity = false;
  bool no_long_row = false;
};

// `ids` are compared in their own type; nothing is cast before it is known to fit. Where an id is
// out of range and `drop` is false, only `first_bad` is set.
PlanFacts build_plan(const void* ids, IdType type, i64 num_edges, i64 num_rows, bool drop,
                     int num_threads, const PlanArrays& out);

// The same from row bounds, which the caller has validated: perm is the identity.
PlanFacts build_plan_from_indptr(i64 num_edges, i64 num_rows, const PlanArrays& out);

}  // namespace jax_index
