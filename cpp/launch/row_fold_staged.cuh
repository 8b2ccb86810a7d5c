// SPDX-License-Identifier: Apache-2.0
// Rows of several words. A warp takes neighbouring rows: it reads the ends of all of them and then
// their indices at once, into shared memory, so that the loads of edges need not wait for one index
// after the other. A team of threads, each owning one word (up to 16 bytes) of the row, folds a
// row; teams share the rows of a warp. The first blocks take the tasks of long rows.
#pragma once

#include "launch/row_fold_tasks.cuh"

namespace jax_index::JI_TARGET {

struct StagedGrid {
  TaskGrid tasks;
  i64 lane_blocks;  // warps that share the words of a row
  i64 row_blocks;   // warps that share the rows of a slice
  i64 warps;
  i64 first_block;  // of this launch
  int lanes;        // threads of a team
  int rows_here;    // rows of a warp
};

// Items whose indices lie in shared memory.
template <class Items, class Index>
struct StagedItems {
  const Items& items;
  const Index* stage;
  __device__ __forceinline__ Index index(i32 p) const { return stage[p]; }
  __device__ __forceinline__ Index nothing() const { return items.nothing(); }
  __device__ __forceinline__ bool there(Index i) const { return items.there(i); }
  __device__ __forceinline__ auto fetch(Index i) const { return items.fetch(i); }
  template <class Value, class Raw>
  __device__ __forceinline__ Value add(const Value& acc, const Raw& raw) const {
    return items.add(acc, raw);
  }
};

template <class Policy, class Program, int N>
__global__ __launch_bounds__(Policy::kThreads, Policy::kMinBlocks) void staged_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ StagedGrid g) {
  using Monoid = typename Program::Monoid;
  using T = typename Program::T;
  using Value = Tile<AccOf<T>, 1, N>;
  using Items = typename Program::template Items<1, N>;
  using Index = decltype(static_cast<const Items*>(nullptr)->index(0));
  constexpr int kWarps = Policy::kThreads / 32;
  constexpr int kStage = kTaskBytes / kWarps / (int)sizeof(Index);
  static_assert(kStage > kLongRow, "a row that is not long fits into a stage");
  // The chunk results of tasks, or the indices of each warp.
  __shared__ __align__(16) unsigned char shared[kTaskBytes];
  __shared__ i32 ends[kWarps][33];
  i64 warp = g.first_block + blockIdx.x - g.tasks.blocks;
  if (warp < 0) {
    fold_tasks<Policy, Program, N>(a, g.tasks, warp + g.tasks.blocks, shared);
    return;
  }
  const int local_warp = threadIdx.x / 32;
  const int thread = threadIdx.x % 32;
  warp = warp * kWarps + local_warp;
  if (warp >= g.warps) return;
  i64 lane = 0;
  if (g.lane_blocks > 1) {
    lane = warp % g.lane_blocks * g.lanes;
    warp /= g.lane_blocks;
  }
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = warp / g.row_blocks;
    warp %= g.row_blocks;
  }
  const int team = thread / g.lanes;
  const int teams = 32 / g.lanes;
  lane += thread % g.lanes;
  const bool active = team < teams && lane * N < a.width;
  Index* stage = reinterpret_cast<Index*>(shared) + local_warp * kStage;
  i32* begins = ends[local_warp];
  const RowFoldSlice<T> s{a, slice};
  const CsrView csr = s.csr();
  const i64 first_row = warp * g.rows_here;
  const int rows =
      csr.num_rows - first_row < g.rows_here ? (int)(csr.num_rows - first_row) : g.rows_here;
  RowRange mine = {0, 0};
  if (thread < rows) mine = row_range(csr, first_row + thread);
  const bool is_long = thread < rows && mine.count > kLongRow;
  Items items(s, csr, active ? lane * N : 0);
  for (int done = 0; done < rows;) {
    // As many of the next rows as fit into the stage; plans that hold nonsense may not be monotone.
    const i32 begin = __shfl_sync(~0u, mine.begin, done);
    const bool fits = thread >= done && thread < rows && !is_long && mine.begin >= begin &&
                      mine.begin + mine.count - begin <= kStage;
    const u32 run = __ballot_sync(~0u, fits) >> done;
    const int count = run == ~0u ? 32 : __ffs(~run) - 1;
    if (count == 0) {
      // A long row is a task; without the list of tasks no row is.
      ++done;
      continue;
    }
    const i32 total = __shfl_sync(~0u, mine.begin + mine.count, done + count - 1) - begin;
    for (i32 p = thread; p < total; p += 32) stage[p] = items.index(begin + p);
    if (thread >= done && thread < done + count) begins[thread - done] = mine.begin - begin;
    if (thread == done + count - 1) begins[count] = mine.begin + mine.count - begin;
    __syncwarp();
    for (int r = team; active && r < count; r += teams) {
      const i64 row = first_row + done + r;
      const i32 from = begins[r];
      const i32 edges = begins[r + 1] - from;
      items.set_row(row);
      const StagedItems<Items, Index> staged{items, stage};
      const Value value = fold_group<Monoid, Policy::kLoads, Value>(from, edges, staged);
      Program::Finish::template store<Monoid, T, 1, N>(s, row, lane * N, value, edges);
    }
    __syncwarp();
    done += count;
  }
}

template <class Program, int N>
void launch_staged(const Cuda& cuda, const RowFoldArgs& a) {
  using Value = Tile<AccOf<typename Program::T>, 1, N>;
  using Policy = ProductRows<sizeof(Value)>;
  constexpr int kWarps = Policy::kThreads / 32;
  StagedGrid g = {};
  const i64 lanes = a.width / N;
  g.tasks = task_grid<Policy, Value>(a, lanes);
  g.lanes = (int)(lanes < 32 ? lanes : 32);
  g.lane_blocks = ceil_div(lanes, g.lanes);
  // A few rows to a team, so that heavy neighbours do not keep one warp busy for long; fewer where
  // the graph is small.
  const i64 teams = 32 / g.lanes;
  const i64 all_rows = a.nest.slices * a.csr.num_rows * g.lane_blocks;
  const i64 wanted = all_rows / Policy::kBusyWarps / teams;
  const i64 each = wanted < 1 ? 1 : wanted > Policy::kRowsOfTeam ? Policy::kRowsOfTeam : wanted;
  g.rows_here = (int)(each * teams < 32 ? each * teams : 32);
  g.row_blocks = ceil_div(a.csr.num_rows, g.rows_here);
  g.warps = a.nest.slices * g.row_blocks * g.lane_blocks;
  for_each_grid(g.tasks.blocks + ceil_div(g.warps, kWarps), [&](i64 first, unsigned grid) {
    g.first_block = first;
    staged_kernel<Policy, Program, N><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
  });
}

}  // namespace jax_index::JI_TARGET
