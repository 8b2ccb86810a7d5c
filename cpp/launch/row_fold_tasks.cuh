// SPDX-License-Identifier: Apache-2.0
// Long rows. Blocks share the plan's list of tasks: the chunks of a task are folded side by side,
// their results in order. Rows of several tasks leave partials, which a second kernel folds.
#pragma once

#include "core/row_items.h"
#include "launch/cuda.cuh"

namespace jax_index::JI_TARGET {

// How the list of tasks is dealt out.
struct TaskGrid {
  i64 blocks = 0;  // all of them; 0: no row is long
  i64 per_slice = 0;
  i64 lane_blocks = 1;
  int lanes = 1;       // of a block
  int tasks_here = 1;  // tasks that a block folds at once
};

// Bytes of chunk results that a block keeps.
constexpr int kTaskBytes = 8192;

// Folds a row that is not long, InFlight reads at a time. `total`, a place of this thread in shared
// memory, holds what the chunks before the current one gave: most rows have one chunk, and
// registers decide how many threads hide the latency of the reads.
template <class Monoid, int InFlight, class Value, class Items>
__device__ __forceinline__ Value fold_short(i32 begin, i32 count, const Items& items,
                                            Value* total) {
  static_assert(kChunk % InFlight == 0, "a batch lies within a chunk");
  using Fold = TileFold<Monoid, Value>;
  Value acc = Fold::identity();
  auto from = items.from(begin);
  JI_NO_UNROLL
  for (i32 left = count; left > 0; left -= InFlight) {
    const i32 done = count - left;
    if (done != 0 && done % kChunk == 0) {
      *total = done == kChunk ? acc : Fold::combine(*total, acc);
      acc = Fold::identity();
    }
    acc = fold_batch<InFlight>(acc, items, from, left);
    from.skip(InFlight);
  }
  return count > kChunk ? Fold::combine(*total, acc) : acc;
}

template <class Policy, class Value>
TaskGrid task_grid(const RowFoldArgs& a, i64 lanes) {
  TaskGrid g;
  if (a.no_long_row || a.csr.num_tasks == 0) return g;
  const i64 fitting = kTaskBytes / (kChunk * (i64)sizeof(Value));
  const i64 most = fitting < Policy::kThreads ? fitting : (i64)Policy::kThreads;
  g.lanes = (int)(lanes < most ? lanes : most);
  g.lane_blocks = ceil_div(lanes, g.lanes);
  const i64 by_threads = Policy::kThreads / (g.lanes * kChunk);
  const i64 by_memory = most / g.lanes;
  g.tasks_here = (int)(by_threads < 1 ? 1 : by_threads < by_memory ? by_threads : by_memory);
  const i64 wanted = ceil_div(a.csr.num_tasks, g.tasks_here);
  g.per_slice = (wanted < Policy::kTaskBlocks ? wanted : (i64)Policy::kTaskBlocks) * g.lane_blocks;
  g.blocks = a.nest.slices * g.per_slice;
  return g;
}

template <class Policy, class Program, int N>
__device__ __noinline__ void fold_tasks(const RowFoldArgs& a, const TaskGrid& g, i64 block,
                                        void* shared) {
  using Monoid = typename Program::Monoid;
  using T = typename Program::T;
  using Items = typename Program::template Items<1, N>;
  using Value = Tile<AccOf<T>, 1, N>;
  using Fold = TileFold<Monoid, Value>;
  auto* chunks = static_cast<Value*>(shared);
  const RowFoldSlice<T> s{a, block / g.per_slice};
  const i64 rest = block % g.per_slice;
  const CsrView csr = s.csr();
  const int slot = (int)(threadIdx.x % (u32)g.lanes);
  const int worker = (int)(threadIdx.x / (u32)g.lanes);
  const int workers = Policy::kThreads / g.lanes;
  const i64 column = (rest % g.lane_blocks * g.lanes + slot) * N;
  const bool active = worker < workers && column < a.width;
  Items items(s, csr, active ? column : 0);
  const i64 step = g.per_slice / g.lane_blocks * g.tasks_here;
  for (i64 t = rest / g.lane_blocks * g.tasks_here; t < csr.num_tasks; t += step) {
    if (csr.tasks[2 * t] < 0) return;
    if (active) {
      for (int c = worker; c < g.tasks_here * kChunk; c += workers) {
        const Task task = task_at(csr, t + c / kChunk);
        const i32 first = c % kChunk * kChunk;
        const i32 left = task.row < 0 ? 0 : task.edges.count - first;
        items.set_row(task.row < 0 ? 0 : task.row);
        chunks[c * g.lanes + slot] = fold_chunk<Monoid, Policy::kLoads, Value>(
            task.edges.begin + first, left < kChunk ? left : kChunk, items);
      }
    }
    __syncthreads();
    if (active && worker < g.tasks_here) {
      const Task task = task_at(csr, t + worker);
      // Chunks beyond the row's end hold the identity, which changes no bit.
      Value value = Fold::identity();
      JI_NO_UNROLL
      for (int c = 0; c < kChunk; ++c)
        value = Fold::combine(value, chunks[(worker * kChunk + c) * g.lanes + slot]);
      if (task.row >= 0 && task.whole) {
        Program::Finish::template store<Monoid, T, 1, N>(s, task.row, column, value,
                                                         task.edges.count);
      } else if (task.row >= 0 && t + worker < a.num_partials) {
        store_partial(s.partials() + (t + worker) * a.width + column, value);
      }
    }
    __syncthreads();
  }
}

struct PartialGrid {
  i64 tree_blocks;    // that fold rows of many partials, for each slice
  i64 thread_blocks;  // that fold rows of few
  i64 column_blocks;
  i64 first_block;  // of this launch
  int columns;      // that one block takes: few leave more threads to the partials of each
};

// Folds partials [first, last) of task t's row, at most kChunk of them.
template <class Policy, class Monoid, class A>
__device__ __forceinline__ Tile<A, 1, 1> fold_partials(const A* partials, i64 width, i64 first,
                                                       i64 last) {
  using Fold = TileFold<Monoid, Tile<A, 1, 1>>;
  auto value = Fold::identity();
  for (i64 p = first; p < last; p += Policy::kLoads) {
    Tile<A, 1, 1> part[Policy::kLoads];
    JI_UNROLL
    for (int u = 0; u < Policy::kLoads; ++u)
      if (p + u < last) part[u] = load_partial<A, 1, 1>(partials + (p + u) * width);
    JI_UNROLL
    for (int u = 0; u < Policy::kLoads; ++u)
      if (p + u < last) value = Fold::combine(value, part[u]);
  }
  return value;
}

template <class Policy, class Finish, class Monoid, class T>
__global__ __launch_bounds__(Policy::kThreads) void partial_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ PartialGrid g) {
  using A = AccOf<T>;
  using Value = Tile<A, 1, 1>;
  using Fold = TileFold<Monoid, Value>;
  constexpr int kThreads = Policy::kThreads;
  const int columns = g.columns;
  // Chunk results that the block's memory holds: whole groups of kChunk.
  constexpr int kResults = Policy::kResults;
  __shared__ Value results[kResults * Policy::kColumns];
  __shared__ i32 found;
  const i64 per_slice = g.tree_blocks + g.thread_blocks;
  const i64 all_blocks = g.first_block + blockIdx.x;
  const RowFoldSlice<T> s{a, all_blocks / per_slice};
  const i64 block = all_blocks % per_slice;
  const CsrView csr = s.csr();
  const A* partials = s.partials();

  if (block >= g.tree_blocks) {
    // A thread for each first task and column.
    const i64 k = (block - g.tree_blocks) * kThreads + threadIdx.x;
    const i64 t = k / a.width;
    const i64 column = k % a.width;
    if (t >= a.num_partials) return;
    const Task task = task_at(csr, t);
    if (task.row < 0 || task.whole || task.groups == 0 || task.groups > kChunk) return;
    const i64 last = t + task.groups < a.num_partials ? t + task.groups : a.num_partials;
    Finish::template store<Monoid, T, 1, 1>(
        s, task.row, column, fold_partials<Policy, Monoid>(partials + column, a.width, t, last),
        row_range(csr, task.row).count);
    return;
  }

  // Among kChunk entries of the list, at most one is the first of a row of more than kChunk tasks.
  const i64 first_task = block / g.column_blocks * kChunk;
  if (threadIdx.x == 0) found = -1;
  __syncthreads();
  if (threadIdx.x < kChunk && first_task + threadIdx.x < a.num_partials) {
    const Task task = task_at(csr, first_task + threadIdx.x);
    if (task.row >= 0 && !task.whole && task.groups > kChunk) found = (i32)threadIdx.x;
  }
  __syncthreads();
  if (found < 0) return;
  const int slot = (int)threadIdx.x % columns;
  const int worker = (int)threadIdx.x / columns;
  const int workers = kThreads / columns;
  const i64 column = block % g.column_blocks * columns + slot;
  const bool active = column < a.width;
  {
    const i64 t = first_task + found;
    const Task task = task_at(csr, t);
    const i64 all = t + task.groups < a.num_partials ? (i64)task.groups : a.num_partials - t;
    TreeFold<Monoid, Value> tree;
    for (i64 done = 0; done < all; done += kResults * kChunk) {
      const i64 left = all - done < kResults * kChunk ? all - done : kResults * kChunk;
      const int chunks = (int)((left + kChunk - 1) / kChunk);
      for (int c = worker; active && c < chunks; c += workers) {
        const i64 end = (c + 1) * kChunk < left ? (c + 1) * kChunk : left;
        results[c * columns + slot] = fold_partials<Policy, Monoid>(
            partials + column, a.width, t + done + c * kChunk, t + done + end);
      }
      __syncthreads();
      // The next level: a worker for each group of chunk results.
      const int groups = (chunks + kChunk - 1) / kChunk;
      Value value = Fold::identity();
      if (worker < groups)
        for (int c = worker * kChunk; c < chunks && c < (worker + 1) * kChunk; ++c)
          value = Fold::combine(value, results[c * columns + slot]);
      __syncthreads();
      if (worker < groups) results[worker * columns + slot] = value;
      __syncthreads();
      if (active && worker == 0)
        for (int c = 0; c < groups; ++c) tree.push(results[c * columns + slot]);
      __syncthreads();
    }
    if (active && worker == 0)
      Finish::template store<Monoid, T, 1, 1>(s, task.row, column, tree.finish(),
                                              row_range(csr, task.row).count);
  }
}

template <class Finish, class Monoid, class T, class Policy = Partials>
void launch_partials(const Cuda& cuda, const RowFoldArgs& a) {
  static_assert(Policy::kResults * Policy::kColumns <= kChunk * Policy::kThreads,
                "a worker for each group of chunk results");
  PartialGrid g = {};
  g.columns = 1;
  while (g.columns < a.width && g.columns < Policy::kColumns) g.columns *= 2;
  g.column_blocks = ceil_div(a.width, g.columns);
  g.tree_blocks = ceil_div(a.num_partials, kChunk) * g.column_blocks;
  g.thread_blocks = ceil_div(a.num_partials * a.width, Policy::kThreads);
  const i64 blocks = a.nest.slices * (g.tree_blocks + g.thread_blocks);
  for_each_grid(blocks, [&](i64 first, unsigned grid) {
    g.first_block = first;
    partial_kernel<Policy, Finish, Monoid, T><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
  });
}

}  // namespace jax_index::JI_TARGET
