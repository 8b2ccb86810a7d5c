// SPDX-License-Identifier: Apache-2.0
// Reading a plan. Whatever the arrays hold (plans pass through tree maps and averages), nothing
// outside an operand is touched: bounds are clamped, and an edge that is not there is skipped.
#pragma once

#include "core/order.h"

namespace jax_index {

// CSR of the transposed selection matrix, and the schedule of its long rows.
struct CsrView {
  const i32* ids = nullptr;     // [num_edges]; the row of each edge, in the caller's order
  const i32* indptr = nullptr;  // [num_rows + 1]
  const i32* perm = nullptr;    // [num_edges]; null: the identity
  const i32* tasks = nullptr;   // [num_tasks, 2]: (row, group of kGroup edges); ends at row -1
  i64 num_rows = 0;
  i64 num_edges = 0;
  i64 num_tasks = 0;
};

// The longest possible list of tasks, with one entry for its end: a long row has more than kLongRow
// edges, and its tasks but the last have kGroup.
constexpr i64 max_tasks(i64 num_edges) { return num_edges / (kLongRow + 1) + 1; }
// Rows of more than kGroup edges come first in the list; each of their tasks leaves one partial.
constexpr i64 max_partials(i64 num_edges) { return num_edges / (kGroup / 2) + 1; }

}  // namespace jax_index

namespace jax_index::JI_TARGET {

// Positions of the CSR. A position fits 32 bits; its byte offset does not.
struct RowRange {
  i32 begin;
  i32 count;
};

JI_HD i32 clamp(i32 value, i32 low, i32 high) {
  return value < low ? low : (value > high ? high : value);
}

JI_HD RowRange row_range(const CsrView& csr, i64 row) {
  const i32 begin = clamp(csr.indptr[row], 0, (i32)csr.num_edges);
  return {begin, clamp(csr.indptr[row + 1], begin, (i32)csr.num_edges) - begin};
}

// The edge at position p of the CSR, or -1.
JI_HD i32 edge_at(const CsrView& csr, i32 p) {
  if (csr.perm == nullptr) return p;
  const i32 edge = csr.perm[p];
  return (u32)edge < (u32)csr.num_edges ? edge : -1;
}

struct Task {
  i64 row;  // -1: the list ends here
  RowRange edges;
  bool whole;  // the row has no other task
  i32 groups;  // tasks of this row, if this is the first of them; else 0
};

JI_HD Task task_at(const CsrView& csr, i64 t) {
  Task task = {-1, {0, 0}, false, 0};
  if (t >= csr.num_tasks) return task;
  const i64 row = csr.tasks[2 * t];
  const i64 group = csr.tasks[2 * t + 1];
  if ((u64)row >= (u64)csr.num_rows || group < 0) return task;
  const RowRange range = row_range(csr, row);
  const i64 skipped = group * kGroup < range.count ? group * kGroup : range.count;
  const i64 left = range.count - skipped;
  task.row = row;
  task.whole = range.count <= kGroup;
  task.edges = {(i32)(range.begin + skipped), (i32)(left < kGroup ? left : kGroup)};
  task.groups = group == 0 ? (i32)(((i64)range.count + kGroup - 1) / kGroup) : 0;
  return task;
}

}  // namespace jax_index::JI_TARGET
