// SPDX-License-Identifier: Apache-2.0
// Long rows. The tasks of the plan's list are folded by blocks, chunk by chunk side by side; rows
// of several tasks leave partials, which a second kernel folds level by level.
#pragma once

#include "launch/row_fold_wide.cuh"

namespace jax_index::JI_TARGET {

struct LongGrid {
  i64 lane_blocks;
  i64 blocks;      // of one slice, for one block of lanes
  int lanes;       // of a block
  int tasks_here;  // tasks that a block folds at once
};

template <class Policy, class Monoid, class T, int N>
__global__ __launch_bounds__(Policy::kThreads) void task_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ LongGrid g) {
  using Value = Tile<AccOf<T>, 1, N>;
  using Fold = TileFold<Monoid, Value>;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* chunks = reinterpret_cast<Value*>(shared);
  const i64 per_slice = g.blocks * g.lane_blocks;
  const RowFoldSlice<T> s(a, blockIdx.x / per_slice);
  const i64 rest = blockIdx.x % per_slice;
  const int slot = (int)threadIdx.x % g.lanes;
  const i64 column = (rest % g.lane_blocks * g.lanes + slot) * N;
  const int worker = (int)threadIdx.x / g.lanes;
  const int workers = Policy::kThreads / g.lanes;
  const bool active = worker < workers && column < a.width;
  const int chunks_here = g.tasks_here * kChunk;

  for (i64 t = rest / g.lane_blocks * g.tasks_here; t < s.csr.num_tasks;
       t += g.blocks * g.tasks_here) {
    if (s.csr.tasks[2 * t] < 0) return;
    if (active) {
      for (int c = worker; c < chunks_here; c += workers) {
        const Task task = task_at(s.csr, t + c / kChunk);
        const i32 first = c % kChunk * kChunk;
        const i32 left = task.row < 0 ? 0 : task.edges.count - first;
        chunks[c * g.lanes + slot] = with_items<T, N>(a, s, column, [&](const auto& items) {
          return fold_chunk<Monoid, Policy::kLoads, Value>(task.edges.begin + first,
                                                           left < kChunk ? left : kChunk, items);
        });
      }
    }
    __syncthreads();
    if (active && worker < g.tasks_here) {
      const Task task = task_at(s.csr, t + worker);
      // Chunks beyond the row's end hold the identity, which changes no bit.
      Value value = Fold::identity();
      for (int c = 0; c < kChunk; ++c)
        value = Fold::combine(value, chunks[(worker * kChunk + c) * g.lanes + slot]);
      if (task.row >= 0 && task.whole) {
        finish_row<Monoid, T>(a, s, task.row, column, value, task.edges.count == 0);
      } else if (task.row >= 0 && t + worker < a.num_partials) {
        store_partial(s.partials + (t + worker) * a.width + column, value);
      }
    }
    __syncthreads();
  }
}

// One block folds the partials of one row: two levels side by side, the rest in order.
template <class Policy, class Monoid, class T, int N>
__global__ __launch_bounds__(Policy::kThreads) void partial_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ LongGrid g) {
  using Value = Tile<AccOf<T>, 1, N>;
  using Fold = TileFold<Monoid, Value>;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* chunks = reinterpret_cast<Value*>(shared);
  const i64 per_slice = g.blocks * g.lane_blocks;
  const RowFoldSlice<T> s(a, blockIdx.x / per_slice);
  const i64 rest = blockIdx.x % per_slice;
  const int slot = (int)threadIdx.x % g.lanes;
  const i64 column = (rest % g.lane_blocks * g.lanes + slot) * N;
  const int worker = (int)threadIdx.x / g.lanes;
  const int workers = Policy::kThreads / g.lanes;
  const bool active = worker < workers && column < a.width;
  // Chunk results that fit into the block's memory: whole groups of kChunk of them.
  const int chunks_here = g.tasks_here * kChunk;
  const i64 partials_here = (i64)chunks_here * kChunk;

  for (i64 t = rest / g.lane_blocks; t < a.num_partials; t += g.blocks) {
    const Task task = task_at(s.csr, t);
    // Rows of several tasks stand first in the list.
    if (task.row < 0 || task.whole) return;
    if (task.groups == 0 || t + task.groups > a.num_partials) continue;
    TreeFold<Monoid, Value> tree;
    for (i64 first = 0; first < task.groups; first += partials_here) {
      const i64 left = task.groups - first < partials_here ? task.groups - first : partials_here;
      const int count = (int)((left + kChunk - 1) / kChunk);
      if (active) {
        for (int c = worker; c < count; c += workers) {
          const i64 last = (c + 1) * (i64)kChunk < left ? (c + 1) * (i64)kChunk : left;
          Value value = Fold::identity();
          for (i64 p = (i64)c * kChunk; p < last; p += Policy::kLoads) {
            Value part[Policy::kLoads];
            JI_UNROLL
            for (int u = 0; u < Policy::kLoads; ++u)
              if (p + u < last)
                part[u] = load_partial<AccOf<T>, 1, N>(s.partials + (t + first + p + u) * a.width +
                                                       column);
            JI_UNROLL
            for (int u = 0; u < Policy::kLoads; ++u)
              if (p + u < last) value = Fold::combine(value, part[u]);
          }
          chunks[c * g.lanes + slot] = value;
        }
      }
      __syncthreads();
      // The second level: one thread for each group of chunk results, in place.
      const int groups = (count + kChunk - 1) / kChunk;
      Value value = Fold::identity();
      if (active && worker < groups) {
        for (int c = worker * kChunk; c < count && c < (worker + 1) * kChunk; ++c)
          value = Fold::combine(value, chunks[c * g.lanes + slot]);
      }
      __syncthreads();
      if (active && worker < groups) chunks[worker * g.lanes + slot] = value;
      __syncthreads();
      if (active && worker == 0)
        for (int k = 0; k < groups; ++k) tree.push(chunks[k * g.lanes + slot]);
      __syncthreads();
    }
    if (active && worker == 0) finish_row<Monoid, T>(a, s, task.row, column, tree.finish(), false);
  }
}

// A grid whose blocks hold about 8 KB of chunk results.
template <class Value>
LongGrid long_grid(i64 lanes, int max_lanes, int threads) {
  LongGrid g = {};
  const int fitting = (int)(8192 / (kChunk * sizeof(Value)));
  const int most = max_lanes < fitting ? max_lanes : fitting;
  g.lanes = (int)(lanes < most ? lanes : most);
  g.lane_blocks = ceil_div(lanes, g.lanes);
  const int by_threads = threads / (g.lanes * kChunk);
  g.tasks_here = by_threads < 1 ? 1 : by_threads;
  return g;
}

template <class Monoid, class T, int N, class Policy = LongRows>
void launch_tasks(const Cuda& cuda, const RowFoldArgs& a) {
  using Value = Tile<AccOf<T>, 1, N>;
  LongGrid g = long_grid<Value>(a.width / N, Policy::kMaxLanes, Policy::kThreads);
  const i64 wanted = ceil_div(a.csr.num_tasks, g.tasks_here);
  g.blocks = wanted < Policy::kBlocks ? wanted : (i64)Policy::kBlocks;
  const size_t shared = sizeof(Value) * kChunk * g.tasks_here * g.lanes;
  task_kernel<Policy, Monoid, T, N><<<(unsigned)(a.nest.slices * g.blocks * g.lane_blocks),
                                      Policy::kThreads, shared, cuda.stream>>>(a, g);
}

template <class Monoid, class T, int N, class Policy = Partials>
void launch_partials(const Cuda& cuda, const RowFoldArgs& a) {
  using Value = Tile<AccOf<T>, 1, N>;
  LongGrid g = long_grid<Value>(a.width / N, Policy::kMaxLanes, Policy::kThreads);
  g.tasks_here = (int)(32768 / (sizeof(Value) * kChunk * g.lanes));
  g.blocks = a.num_partials < Policy::kBlocks ? a.num_partials : (i64)Policy::kBlocks;
  const size_t shared = sizeof(Value) * kChunk * g.tasks_here * g.lanes;
  partial_kernel<Policy, Monoid, T, N><<<(unsigned)(a.nest.slices * g.blocks * g.lane_blocks),
                                         Policy::kThreads, shared, cuda.stream>>>(a, g);
}

}  // namespace jax_index::JI_TARGET
