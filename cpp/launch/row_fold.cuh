// SPDX-License-Identifier: Apache-2.0
// The CUDA schedule of a row fold. One launch folds everything up to two levels: its first blocks
// take the tasks of long rows from the plan's list, the others a few short rows each. A second
// launch, only where the plan may hold a long row, folds the partials of rows beyond kGroup edges.
// A thread owns up to 16 bytes of one row: no sum is shared between threads except through the
// chunk results of a task, which are folded in order.
#pragma once

#include "core/row_fold.h"
#include "core/tile_io.h"
#include "launch/cuda.cuh"

namespace jax_index::JI_TARGET {

// How blocks are dealt out; computed on the host.
struct RowFoldGrid {
  i64 lanes;        // threads that one row needs
  i64 lane_blocks;  // ... divided among so many blocks
  i64 row_blocks;
  i64 task_lane_blocks;
  int task_lanes;  // lanes of a task block
  int task_rounds;
  i64 task_blocks;  // of one slice
  i64 blocks;       // all of them
};

template <class Op, class T, int N>
struct RowFoldCuda {
  using Value = Tile<AccOf<T>, 1, N>;
  using Fold = TileFold<typename Op::Monoid, Value>;

  // fn(load): with and without the indirection through perm, so that the loop holds no test of it.
  template <class Fn>
  static __device__ __forceinline__ Value with_load(const RowFoldArgs& a, const RowFoldSlice<T>& s,
                                                    i64 column, const Fn& fn) {
    const auto* base = s.edges + column;
    if (s.csr.perm == nullptr) {
      return fn([&](i64 p) { return load_tile<T, 1, N>(base + p * a.edge_pitch, a.mini); });
    }
    return fn([&](i64 p) {
      const i64 edge = __ldg(s.csr.perm + p);
      if ((u64)edge >= (u64)s.csr.num_edges) return Fold::identity();
      return load_tile<T, 1, N>(base + edge * a.edge_pitch, a.mini);
    });
  }

  static __device__ void short_row(const RowFoldArgs& a, const RowFoldSlice<T>& s, i64 row,
                                   i64 column) {
    const RowRange edges = row_range(s.csr, row);
    if (!a.no_long_row && edges.end - edges.begin > kLongRow) return;
    const Value value = with_load(a, s, column, [&](const auto& load) {
      return fold_group<typename Op::Monoid, CudaPolicy::kRowLoads, Value>(edges.begin, edges.end,
                                                                           load);
    });
    Op::template finish<T>(a, s, row, column, value, edges.begin == edges.end);
  }

  // One block folds one task: its chunks side by side, then their results in order.
  static __device__ void task(const RowFoldArgs& a, const RowFoldSlice<T>& s, i64 t, i64 lane,
                              int lanes, int worker, int workers, Value* chunks) {
    const Task task = task_at(s.csr, t);
    const bool mine = task.row >= 0 && (task.whole || t < a.num_partials);
    const i64 count = mine ? (task.edges.end - task.edges.begin + kChunk - 1) / kChunk : 0;
    const i64 column = lane * N;
    const bool active = worker < workers && column < a.width;
    const int slot = (int)threadIdx.x % lanes;
    if (active) {
      for (i64 c = worker; c < count; c += workers) {
        const i64 begin = task.edges.begin + c * kChunk;
        const i64 end = begin + kChunk < task.edges.end ? begin + kChunk : task.edges.end;
        chunks[c * lanes + slot] = with_load(a, s, column, [&](const auto& load) {
          return fold_chunk<typename Op::Monoid, CudaPolicy::kRowLoads, Value>(begin, end, load);
        });
      }
    }
    __syncthreads();
    if (active && worker == 0 && mine) {
      Value value = Fold::identity();
      for (i64 c = 0; c < count; ++c) value = Fold::combine(value, chunks[c * lanes + slot]);
      if (task.whole) {
        Op::template finish<T>(a, s, task.row, column, value, count == 0);
      } else {
        store_partial(s.partials + t * a.width + column, value);
      }
    }
    __syncthreads();
  }
};

template <class Op, class T, int N>
__global__ __launch_bounds__(CudaPolicy::kTaskThreads) void task_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ RowFoldGrid g) {
  using Body = RowFoldCuda<Op, T, N>;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* chunks = reinterpret_cast<typename Body::Value*>(shared);
  const i64 per_slice = g.task_blocks * g.task_lane_blocks;
  const i64 block = blockIdx.x;
  const RowFoldSlice<T> s(a, block / per_slice);
  const i64 rest = block % per_slice;
  const i64 lane = rest % g.task_lane_blocks * g.task_lanes + (int)threadIdx.x % g.task_lanes;
  const int worker = (int)threadIdx.x / g.task_lanes;
  const int workers = CudaPolicy::kTaskThreads / g.task_lanes;
  for (i64 t = rest / g.task_lane_blocks; t < s.csr.num_tasks; t += g.task_blocks) {
    if (s.csr.tasks[2 * t] < 0) return;
    Body::task(a, s, t, lane, g.task_lanes, worker, workers, chunks);
  }
}

template <class Op, class T, int N>
__global__ __launch_bounds__(CudaPolicy::kThreads, CudaPolicy::kMinBlocks) void row_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ RowFoldGrid g) {
  const int lanes_here = (int)(g.lanes < CudaPolicy::kThreads ? g.lanes : CudaPolicy::kThreads);
  const int rows_here = CudaPolicy::kThreads / lanes_here;
  const int local = (int)threadIdx.x / lanes_here;
  if (local >= rows_here) return;
  for (i64 block = blockIdx.x; block < g.blocks; block += gridDim.x) {
    const RowFoldSlice<T> s(a, block / (g.row_blocks * g.lane_blocks));
    const i64 rest = block % (g.row_blocks * g.lane_blocks);
    const i64 lane = rest % g.lane_blocks * lanes_here + (int)threadIdx.x % lanes_here;
    const i64 row = rest / g.lane_blocks * rows_here + local;
    if (lane < g.lanes && row < a.csr.num_rows)
      RowFoldCuda<Op, T, N>::short_row(a, s, row, lane * N);
  }
}

// One block folds the partials of one row: two levels side by side, the rest in order.
template <class Op, class T, int N>
__global__ __launch_bounds__(CudaPolicy::kTaskThreads) void partial_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ RowFoldGrid g) {
  using Body = RowFoldCuda<Op, T, N>;
  using Value = typename Body::Value;
  using Fold = typename Body::Fold;
  extern __shared__ __align__(16) unsigned char shared[];
  auto* chunks = reinterpret_cast<Value*>(shared);
  const i64 per_slice = g.task_blocks * g.task_lane_blocks;
  const i64 block = blockIdx.x;
  const RowFoldSlice<T> s(a, block / per_slice);
  const i64 rest = block % per_slice;
  const int slot = (int)threadIdx.x % g.task_lanes;
  const i64 column = (rest % g.task_lane_blocks * g.task_lanes + slot) * N;
  const int worker = (int)threadIdx.x / g.task_lanes;
  const int workers = CudaPolicy::kTaskThreads / g.task_lanes;
  const bool active = worker < workers && column < a.width;
  for (i64 t = rest / g.task_lane_blocks; t < a.num_partials; t += g.task_blocks) {
    const Task task = task_at(s.csr, t);
    if (task.row < 0) return;
    if (task.whole || task.groups == 0 || t + task.groups > a.num_partials) continue;
    // A block holds kChunk chunk results, so it takes kGroup partials at a time.
    const auto load_group = [&](i64 group) {
      const i64 first = group * kGroup;
      const i64 left = task.groups - first < kGroup ? task.groups - first : kGroup;
      const i64 count = (left + kChunk - 1) / kChunk;
      if (active) {
        for (i64 c = worker; c < count; c += workers) {
          const i64 begin = t + first + c * kChunk;
          const i64 end = t + first + (c * kChunk + kChunk < left ? c * kChunk + kChunk : left);
          chunks[c * g.task_lanes + slot] =
              fold_chunk<typename Op::Monoid, CudaPolicy::kRowLoads, Value>(begin, end, [&](i64 p) {
                return load_partial<AccOf<T>, 1, N>(s.partials + p * a.width + column);
              });
        }
      }
      __syncthreads();
      Value value = Fold::identity();
      if (active && worker == 0)
        for (i64 c = 0; c < count; ++c)
          value = Fold::combine(value, chunks[c * g.task_lanes + slot]);
      __syncthreads();
      return value;
    };
    const Value value =
        fold_tree<typename Op::Monoid, Value>((task.groups + kGroup - 1) / kGroup, load_group);
    if (active && worker == 0) Op::template finish<T>(a, s, task.row, column, value, false);
  }
}

template <class Op, class T, int N>
void launch_row_fold(const Cuda& cuda, const RowFoldArgs& a) {
  using Value = Tile<AccOf<T>, 1, N>;
  constexpr int kThreads = CudaPolicy::kThreads;
  const i64 slices = a.nest.slices;
  RowFoldGrid g = {};
  g.lanes = a.width / N;
  const i64 lanes_here = g.lanes < kThreads ? g.lanes : kThreads;
  const i64 rows_here = kThreads / lanes_here;
  g.lane_blocks = (g.lanes + lanes_here - 1) / lanes_here;
  g.row_blocks = (a.csr.num_rows + rows_here - 1) / rows_here;
  g.blocks = slices * g.row_blocks * g.lane_blocks;
  g.task_lanes = (int)(g.lanes < 32 ? g.lanes : 32);
  g.task_lane_blocks = (g.lanes + g.task_lanes - 1) / g.task_lanes;
  g.task_blocks =
      a.csr.num_tasks < CudaPolicy::kTaskBlocks ? a.csr.num_tasks : (i64)CudaPolicy::kTaskBlocks;
  const size_t shared = sizeof(Value) * kChunk * g.task_lanes;
  const i64 task_grid = slices * g.task_blocks * g.task_lane_blocks;
  const bool tasks = !a.no_long_row && task_grid > 0;
  if (tasks)
    task_kernel<Op, T, N>
        <<<(unsigned)task_grid, CudaPolicy::kTaskThreads, shared, cuda.stream>>>(a, g);
  const i64 grid = g.blocks < CudaPolicy::kMaxGrid ? g.blocks : CudaPolicy::kMaxGrid;
  row_kernel<Op, T, N><<<(unsigned)grid, kThreads, 0, cuda.stream>>>(a, g);
  if (tasks)
    partial_kernel<Op, T, N>
        <<<(unsigned)task_grid, CudaPolicy::kTaskThreads, shared, cuda.stream>>>(a, g);
}

// The most elements that a thread may own: every distance and address is a multiple of them.
template <class Op, class T, int N>
void widest(const Cuda& cuda, const RowFoldArgs& a) {
  constexpr u64 kBytes = N * sizeof(BitsOf<T>);
  u64 distances = (u64)a.width | (u64)a.edge_pitch | (u64)a.init_pitch | (u64)a.out_pitch;
  for (int d = 0; d < a.nest.rank; ++d)
    distances |= (u64)(a.nest.stride[d][RowFoldArgs::kEdges] |
                       a.nest.stride[d][RowFoldArgs::kInit] | a.nest.stride[d][RowFoldArgs::kOut]);
  const u64 addresses =
      reinterpret_cast<u64>(a.edges) | reinterpret_cast<u64>(a.init) | reinterpret_cast<u64>(a.out);
  if constexpr (N > 1) {
    if (distances % N || addresses % kBytes) return widest<Op, T, N / 2>(cuda, a);
  }
  launch_row_fold<Op, T, N>(cuda, a);
}

template <class Op>
void run_row_fold(const Cuda& cuda, const RowFoldArgs& a) {
  switch (a.dtype) {
    case DType::kF32:
      return widest<Op, float, 4>(cuda, a);
    case DType::kF64:
      return widest<Op, double, 2>(cuda, a);
    case DType::kF16:
      return widest<Op, F16, 8>(cuda, a);
    case DType::kBF16:
      return widest<Op, BF16, 8>(cuda, a);
    case DType::kF8:
      return widest<Op, F8, 8>(cuda, a);
    case DType::kU8:
      return widest<Op, u8, 8>(cuda, a);
    case DType::kU16:
      return widest<Op, u16, 8>(cuda, a);
    case DType::kU32:
      return widest<Op, u32, 4>(cuda, a);
    case DType::kU64:
      return widest<Op, u64, 2>(cuda, a);
  }
}

}  // namespace jax_index::JI_TARGET
