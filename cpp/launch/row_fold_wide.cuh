// SPDX-License-Identifier: Apache-2.0
// Short rows of several words. A thread owns one word (up to 16 bytes) of one row and folds it
// alone; the words of a row lie side by side in a block.
#pragma once

#include "core/row_fold.h"
#include "launch/cuda.cuh"

namespace jax_index::JI_TARGET {

// The edges of a row in the columns of one thread.
template <class T, int N, bool Permuted>
struct ThreadItems {
  using Word = RawTile<T, 1, N>;
  const BitsOf<T>* base;  // of the thread's column
  const i32* perm;
  const RowFoldArgs& a;

  __device__ __forceinline__ i32 index(i32 p) const {
    if constexpr (Permuted) return __ldg(perm + p);
    return p;
  }
  __device__ __forceinline__ bool there(i32 edge) const { return (u32)edge < (u32)a.csr.num_edges; }
  __device__ __forceinline__ Word fetch(i32 edge) const {
    return load_once<Word>(base + edge * a.edge_pitch);
  }
  __device__ __forceinline__ auto widen(const Word& raw) const {
    return JI_TARGET::widen<T, 1, N>(raw, a.mini);
  }
};

// fn(items), with or without the indirection through perm: a loop that tests for it cannot have
// several reads on their way.
template <class T, int N, class Fn>
__device__ __forceinline__ auto with_items(const RowFoldArgs& a, const RowFoldSlice<T>& s,
                                           i64 column, const Fn& fn) {
  if (s.csr.perm != nullptr) return fn(ThreadItems<T, N, true>{s.edges + column, s.csr.perm, a});
  return fn(ThreadItems<T, N, false>{s.edges + column, nullptr, a});
}

struct WideGrid {
  i64 lanes;        // threads that one row needs
  i64 lane_blocks;  // blocks that share them
  i64 row_blocks;
  int lanes_here;
  int rows_here;
  i64 first_block;  // of this launch
};

template <class Policy, class Monoid, class T, int N>
__global__ __launch_bounds__(Policy::kThreads, Policy::kMinBlocks) void wide_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ WideGrid g) {
  using Value = Tile<AccOf<T>, 1, N>;
  const u32 local = threadIdx.x / (u32)g.lanes_here;
  const i64 block = g.first_block + blockIdx.x;
  i64 lane_block = 0;
  i64 row_block = block;
  if (g.lane_blocks > 1) {
    lane_block = row_block % g.lane_blocks;
    row_block /= g.lane_blocks;
  }
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = row_block / g.row_blocks;
    row_block %= g.row_blocks;
  }
  const i64 lane = lane_block * g.lanes_here + threadIdx.x % (u32)g.lanes_here;
  const i64 row = row_block * g.rows_here + local;
  if (local >= (u32)g.rows_here || lane >= g.lanes || row >= a.csr.num_rows) return;
  const RowFoldSlice<T> s(a, slice);
  const RowRange edges = row_range(s.csr, row);
  if (!a.no_long_row && edges.count > kLongRow) return;
  const Value value = with_items<T, N>(a, s, lane * N, [&](const auto& items) {
    return fold_group<Monoid, Policy::kLoads, Value>(edges.begin, edges.count, items);
  });
  finish_row<Monoid, T>(a, s, row, lane * N, value, edges.count == 0);
}

template <class Monoid, class T, int N, class Policy = WideRows<sizeof(Tile<AccOf<T>, 1, N>)>>
void launch_wide(const Cuda& cuda, const RowFoldArgs& a) {
  WideGrid g = {};
  g.lanes = a.width / N;
  g.lanes_here = (int)(g.lanes < Policy::kThreads ? g.lanes : Policy::kThreads);
  g.rows_here = Policy::kThreads / g.lanes_here;
  g.lane_blocks = ceil_div(g.lanes, g.lanes_here);
  g.row_blocks = ceil_div(a.csr.num_rows, g.rows_here);
  for_each_grid(a.nest.slices * g.row_blocks * g.lane_blocks, [&](i64 first, unsigned grid) {
    g.first_block = first;
    wide_kernel<Policy, Monoid, T, N><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
  });
}

}  // namespace jax_index::JI_TARGET
