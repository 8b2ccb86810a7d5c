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

// What a warp reads ahead of a position: the index; where an edge has one weight, the weight
// itself, since one thread then reads it for all words of the row.
template <class Items, bool OneWeight>
struct Staged;

template <class Items>
struct Staged<Items, false> {
  using Slot = decltype(static_cast<const Items*>(nullptr)->nothing());
  static __device__ __forceinline__ Slot read(const Items& items, i32 p) {
    return items.index(items.from(p), 0);
  }
};

template <class Items>
struct Staged<Items, true> {
  using Slot = typename Items::SourceAndWeight;
  static __device__ __forceinline__ Slot read(const Items& items, i32 p) {
    return items.source_and_weight(items.index(items.from(p), 0));
  }
};

// Items of which a part lies in shared memory.
template <class Items, class Slot>
struct StagedItems {
  struct From {
    const Slot* stage;
    __device__ __forceinline__ void skip(int count) { stage += count; }
  };
  const Items& items;
  const Slot* stage;
  __device__ __forceinline__ From from(i32 p) const { return {stage + p}; }
  __device__ __forceinline__ Slot index(const From& from, int u) const { return from.stage[u]; }
  __device__ __forceinline__ Slot nothing() const { return items.nothing(); }
  __device__ __forceinline__ bool there(const Slot& i) const { return items.there(i); }
  __device__ __forceinline__ auto fetch(const Slot& i) const { return items.fetch(i); }
  template <class Value, class Raw>
  __device__ __forceinline__ Value add(const Value& acc, const Raw& raw) const {
    return items.add(acc, raw);
  }
};

template <class Policy, class Program, int N, bool OneWeight>
__global__ __launch_bounds__(Policy::kThreads, Policy::kMinBlocks) void staged_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ StagedGrid g) {
  using Monoid = typename Program::Monoid;
  using T = typename Program::T;
  using Value = Tile<AccOf<T>, 1, N>;
  using Items = typename Program::template Items<1, N>;
  using Stage = Staged<Items, OneWeight>;
  using Slot = typename Stage::Slot;
  constexpr int kWarps = Policy::kThreads / 32;
  constexpr int kStage = kTaskBytes / kWarps / (int)sizeof(Slot);
  static_assert(kStage > kLongRow, "a row that is not long fits into a stage");
  // The chunk results of tasks, or what each warp has read ahead.
  __shared__ __align__(16) unsigned char shared[kTaskBytes];
  __shared__ Value totals[Policy::kThreads];
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
  Slot* stage = reinterpret_cast<Slot*>(shared) + local_warp * kStage;
  i32* begins = ends[local_warp];
  const RowFoldSlice<T> s{a, slice};
  const CsrView csr = s.csr();
  const i32 first_row = (i32)warp * g.rows_here;
  const int rows =
      csr.num_rows - first_row < g.rows_here ? (int)(csr.num_rows - first_row) : g.rows_here;
  u32 longs;
  {
    RowRange mine = {0, 0};
    if (thread < rows) {
      mine = row_range(csr, first_row + thread);
      begins[thread] = mine.begin;
      if (thread == rows - 1) begins[rows] = mine.begin + mine.count;
    }
    longs = __ballot_sync(~0u, mine.count > kLongRow);
    __syncwarp();
  }
  const int column = active ? (int)lane * N : 0;
  Items items(s, csr, column);
  const KeptSlice<T> kept(s);
  for (int done = 0; done < rows;) {
    // As many of the next rows as fit into the stage; plans that hold nonsense may not be monotone.
    const i32 begin = begins[done];
    bool fits = thread >= done && thread < rows && (longs >> thread & 1u) == 0;
    if (fits) fits = begins[thread + 1] >= begins[thread] && begins[thread + 1] - begin <= kStage;
    const u32 run = __ballot_sync(~0u, fits) >> done;
    const int stop = done + (run == ~0u ? 32 : __ffs(~run) - 1);
    if (stop == done) {
      // A long row is a task; without the list of tasks no row is.
      ++done;
      continue;
    }
    const i32 total = begins[stop] - begin;
    for (i32 p = thread; p < total; p += 32) stage[p] = Stage::read(items, begin + p);
    __syncwarp();
    for (int r = done + team; active && r < stop; r += teams) {
      const i32 edges = begins[r + 1] - begins[r];
      items.set_row(first_row + r);
      const StagedItems<Items, Slot> staged{items, stage};
      const Value value = fold_short<Monoid, Policy::kLoads, Value>(begins[r] - begin, edges,
                                                                    staged, totals + threadIdx.x);
      Program::Finish::template store<Monoid, T, 1, N>(kept, first_row + r, column, value, edges);
    }
    __syncwarp();
    done = stop;
  }
}

template <class Program, int N, bool OneWeight = false>
void launch_staged(const Cuda& cuda, const RowFoldArgs& a) {
  using Value = Tile<AccOf<typename Program::T>, 1, N>;
  using Policy = ProductRows<sizeof(Value)>;
  constexpr int kWarps = Policy::kThreads / 32;
  StagedGrid g = {};
  const i64 lanes = a.width / N;
  g.tasks = task_grid<Policy, Value>(a, lanes);
  g.lanes = (int)(lanes < 32 ? lanes : 32);
  g.lane_blocks = ceil_div(lanes, g.lanes);
  // Several rows to a team, so that it seldom waits for the first index; fewer where neighbouring
  // rows may be heavy, so that they do not keep one warp busy for long, or the graph is small.
  const i64 teams = 32 / g.lanes;
  const i64 all_rows = a.nest.slices * a.csr.num_rows * g.lane_blocks;
  const i64 most = a.no_long_row ? Policy::kRowsOfTeam : Policy::kRowsBesideLong;
  const i64 wanted = all_rows / Policy::kBusyWarps / teams;
  const i64 each = wanted < 1 ? 1 : wanted > most ? most : wanted;
  g.rows_here = (int)(each * teams < 32 ? each * teams : 32);
  g.row_blocks = ceil_div(a.csr.num_rows, g.rows_here);
  g.warps = a.nest.slices * g.row_blocks * g.lane_blocks;
  for_each_grid(g.tasks.blocks + ceil_div(g.warps, kWarps), [&](i64 first, unsigned grid) {
    g.first_block = first;
    staged_kernel<Policy, Program, N, OneWeight><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
  });
}

}  // namespace jax_index::JI_TARGET
