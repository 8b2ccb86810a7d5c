// SPDX-License-Identifier: Apache-2.0
// Rows of several words. A thread owns one word (up to 16 bytes) of one row and folds it alone; the
// words of a row lie side by side in a block. The first blocks take the tasks of long rows.
#pragma once

#include "launch/row_fold_tasks.cuh"

namespace jax_index::JI_TARGET {

struct WideGrid {
  TaskGrid tasks;
  i64 lanes;        // threads that one row needs
  i64 lane_blocks;  // blocks that share them
  i64 row_blocks;
  i64 first_block;  // of this launch
  int lanes_here;
  int rows_here;
};

template <class Policy, class Program, int N>
__global__ __launch_bounds__(Policy::kThreads, Policy::kMinBlocks) void wide_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ WideGrid g) {
  using Monoid = typename Program::Monoid;
  using T = typename Program::T;
  using Value = Tile<AccOf<T>, 1, N>;
  __shared__ __align__(16) unsigned char shared[kTaskBytes];
  static_assert(Policy::kThreads * sizeof(Value) <= kTaskBytes, "a total for each thread");
  i64 row_block = g.first_block + blockIdx.x - g.tasks.blocks;
  if (row_block < 0) {
    fold_tasks<Policy, Program, N>(a, g.tasks, row_block + g.tasks.blocks, shared);
    return;
  }
  i64 lane = threadIdx.x % (u32)g.lanes_here;
  if (g.lane_blocks > 1) {
    lane += row_block % g.lane_blocks * g.lanes_here;
    row_block /= g.lane_blocks;
  }
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = row_block / g.row_blocks;
    row_block %= g.row_blocks;
  }
  const u32 local = threadIdx.x / (u32)g.lanes_here;
  const i64 row = row_block * g.rows_here + local;
  if (local >= (u32)g.rows_here || lane >= g.lanes || row >= a.csr.num_rows) return;
  const RowFoldSlice<T> s{a, slice};
  const CsrView csr = s.csr();
  const RowRange edges = row_range(csr, row);
  if (!a.no_long_row && edges.count > kLongRow) return;
  typename Program::template Items<1, N> items(s, csr, lane * N);
  items.set_row(row);
  const Value value = fold_short<Monoid, Policy::kLoads, Value>(
      edges.begin, edges.count, items, reinterpret_cast<Value*>(shared) + threadIdx.x);
  Program::Finish::template store<Monoid, T, 1, N>(s, row, lane * N, value, edges.count);
}

template <class Program, int N, template <int> class Rows = WideRows>
void launch_wide(const Cuda& cuda, const RowFoldArgs& a) {
  using Value = Tile<AccOf<typename Program::T>, 1, N>;
  using Policy = Rows<sizeof(Value)>;
  WideGrid g = {};
  g.lanes = a.width / N;
  g.tasks = task_grid<Policy, Value>(a, g.lanes);
  g.lanes_here = (int)(g.lanes < Policy::kThreads ? g.lanes : Policy::kThreads);
  g.rows_here = Policy::kThreads / g.lanes_here;
  g.lane_blocks = ceil_div(g.lanes, g.lanes_here);
  g.row_blocks = ceil_div(a.csr.num_rows, g.rows_here);
  const i64 blocks = g.tasks.blocks + a.nest.slices * g.row_blocks * g.lane_blocks;
  for_each_grid(blocks, [&](i64 first, unsigned grid) {
    g.first_block = first;
    wide_kernel<Policy, Program, N><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
  });
}

}  // namespace jax_index::JI_TARGET
