// SPDX-License-Identifier: Apache-2.0
// Short rows of few words. The edges of neighbouring rows are neighbours in the CSR: a warp copies
// their words to shared memory with all its lanes, then each thread folds its row from there, in
// order. Rows that cross a stage keep their fold in registers.
#pragma once

#include "core/row_fold.h"
#include "launch/cuda.cuh"

namespace jax_index::JI_TARGET {

struct NarrowGrid {
  i64 row_blocks;  // rows that one warp takes are one block of rows
  i64 warps;
  i64 first_block;
  int lanes;      // words of a row
  int rows_here;  // rows of a warp
};

// Two levels of a fold that is continued piece by piece.
template <class Monoid, class Value>
struct RunningFold {
  using Fold = TileFold<Monoid, Value>;
  Value total = Fold::identity();
  Value chunk = Fold::identity();
  i32 in_chunk = 0;

  __device__ __forceinline__ void add(const Value& value) {
    if (in_chunk == kChunk) {
      total = Fold::combine(total, chunk);
      chunk = Fold::identity();
      in_chunk = 0;
    }
    chunk = Fold::combine(chunk, value);
    ++in_chunk;
  }
  __device__ __forceinline__ Value finish() const { return Fold::combine(total, chunk); }
};

// Copies a word to shared memory; where the hardware can, without passing through registers.
template <class Word>
__device__ __forceinline__ void stage_word(Word* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(Word) >= 4) {
    const u32 address = (u32)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from),
                 "n"(sizeof(Word)));
    return;
  }
#endif
  *to = load_word<Word>(from);
}

__device__ __forceinline__ void wait_for_stage() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Copies the words of `count` edges from position `at` on, side by side, with all lanes of a warp.
// Padded: one word of padding behind every kChunk words, so that threads that read 32 words apart
// do not meet on one bank.
template <class Monoid, class T, int N, int Loads, bool Permuted, bool Padded>
__device__ __forceinline__ void stage_edges(const RowFoldArgs& a, const RowFoldSlice<T>& s, i32 at,
                                            i32 count, u32 lanes, RawTile<T, 1, N>* stage) {
  const u32 words = (u32)count * lanes;
  for (u32 w = threadIdx.x % 32; w < words; w += 32 * Loads) {
    i32 edge[Loads];
    JI_UNROLL
    for (int u = 0; u < Loads; ++u) {
      const u32 k = w + 32 * u;
      const i32 p = at + (i32)(lanes == 1 ? k : k / lanes);
      edge[u] = -1;
      if (k < words) edge[u] = Permuted ? __ldg(s.csr.perm + p) : p;
    }
    JI_UNROLL
    for (int u = 0; u < Loads; ++u) {
      const u32 k = w + 32 * u;
      const u32 c = lanes == 1 ? 0 : k % lanes;
      auto* to = stage + (Padded ? k + k / kChunk : k);
      if ((u32)edge[u] < (u32)a.csr.num_edges) {
        stage_word(to, s.edges + edge[u] * a.edge_pitch + c * N);
      } else if (k < words) {
        // An edge that is not there folds nothing: the identity, as it is stored.
        BitsOf<T> none[N];
        tile_each(TileFold<Monoid, Tile<AccOf<T>, 1, N>>::identity(),
                  [&](int i, AccOf<T> v) { none[i] = Codec<T>::template encode<1>(v, a.mini); });
        memcpy(to, none, sizeof(*to));
      }
    }
  }
  wait_for_stage();
  __syncwarp();
}

template <class Policy, class Monoid, class T, int N, bool Permuted>
__global__ __launch_bounds__(Policy::kThreads, Policy::kMinBlocks) void narrow_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ NarrowGrid g) {
  using Value = Tile<AccOf<T>, 1, N>;
  using Word = RawTile<T, 1, N>;
  constexpr int kStage = Policy::kStageBytes / (int)sizeof(Word);
  __shared__ Word stages[Policy::kThreads / 32][kStage];
  Word* stage = stages[threadIdx.x / 32];
  const u32 thread = threadIdx.x % 32;
  i64 row_block = (g.first_block + blockIdx.x) * (Policy::kThreads / 32) + threadIdx.x / 32;
  if (row_block >= g.warps) return;
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = row_block / g.row_blocks;
    row_block %= g.row_blocks;
  }
  const RowFoldSlice<T> s(a, slice);
  const u32 lanes = (u32)g.lanes;
  const u32 local = thread / lanes;
  const u32 lane = thread % lanes;
  const i64 row = row_block * g.rows_here + local;
  const bool mine = local < (u32)g.rows_here && row < a.csr.num_rows;
  RowRange edges = {0, 0};
  if (mine) edges = row_range(s.csr, row);
  const bool is_long = !a.no_long_row && edges.count > kLongRow;
  RunningFold<Monoid, Value> fold;

  // Rows between two long ones form one run of positions; most warps have a single run.
  u32 left = __ballot_sync(~0u, mine && !is_long && edges.count > 0);
  const u32 longs = a.no_long_row ? 0u : __ballot_sync(~0u, is_long);
  while (left) {
    const int head = __ffs(left) - 1;
    const u32 stop = longs & ~((2u << head) - 1u);
    const u32 run = stop ? left & ((stop & (0u - stop)) - 1u) : left;
    left &= ~run;
    const i32 begin = __shfl_sync(~0u, edges.begin, head);
    const i32 end = __shfl_sync(~0u, edges.begin + edges.count, 31 - __clz(run));
    const bool in_run = run >> thread & 1u;
    const i32 edges_here = kStage / g.lanes;
    for (i32 done = 0; done < end - begin; done += edges_here) {
      const i32 at = begin + done;
      const i32 count = end - at < edges_here ? end - at : edges_here;
      stage_edges<Monoid, T, N, Policy::kLoads, Permuted, false>(a, s, at, count, lanes, stage);
      if (in_run) {
        const i32 from = edges.begin > at ? edges.begin - at : 0;
        const i32 rest = edges.begin + edges.count - at;
        const i32 to = rest < count ? rest : count;
        for (i32 e = from; e < to; ++e)
          fold.add(widen<T, 1, N>(stage[(u32)e * lanes + lane], a.mini));
      }
      __syncwarp();
    }
  }
  if (mine && !is_long) finish_row<Monoid, T>(a, s, row, lane * N, fold.finish(), edges.count == 0);
}

template <class Monoid, class T, int N, class Policy = NarrowRows>
void launch_narrow(const Cuda& cuda, const RowFoldArgs& a) {
  constexpr int kWarps = Policy::kThreads / 32;
  NarrowGrid g = {};
  g.lanes = (int)(a.width / N);
  g.rows_here = 32 / g.lanes;
  g.row_blocks = ceil_div(a.csr.num_rows, g.rows_here);
  g.warps = a.nest.slices * g.row_blocks;
  for_each_grid(ceil_div(g.warps, kWarps), [&](i64 first, unsigned grid) {
    g.first_block = first;
    if (a.csr.perm) {
      narrow_kernel<Policy, Monoid, T, N, true><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
    } else {
      narrow_kernel<Policy, Monoid, T, N, false><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
    }
  });
}

// Tasks of rows of one small word: a warp stages one task, each thread folds one chunk of it.
template <class Policy, class Monoid, class T, int N, bool Permuted>
__global__ __launch_bounds__(Policy::kThreads) void narrow_task_kernel(
    const __grid_constant__ RowFoldArgs a, i64 warps_per_slice) {
  using Value = Tile<AccOf<T>, 1, N>;
  using Fold = TileFold<Monoid, Value>;
  using Word = RawTile<T, 1, N>;
  __shared__ Word stages[Policy::kThreads / 32][kGroup + kChunk];
  Word* stage = stages[threadIdx.x / 32];
  const int thread = threadIdx.x % 32;
  const i64 warp = (i64)blockIdx.x * (Policy::kThreads / 32) + threadIdx.x / 32;
  if (warp >= warps_per_slice * a.nest.slices) return;
  const RowFoldSlice<T> s(a, warp / warps_per_slice);
  for (i64 t = warp % warps_per_slice; t < s.csr.num_tasks; t += warps_per_slice) {
    if (s.csr.tasks[2 * t] < 0) return;
    const Task task = task_at(s.csr, t);
    stage_edges<Monoid, T, N, Policy::kLoads, Permuted, true>(a, s, task.edges.begin,
                                                              task.edges.count, 1, stage);
    const i32 left = task.edges.count - thread * kChunk;
    Value chunk = Fold::identity();
    for (i32 k = 0; k < (left < kChunk ? left : kChunk); ++k)
      chunk = Fold::combine(chunk, widen<T, 1, N>(stage[thread * (kChunk + 1) + k], a.mini));
    // Every thread folds the chunk results in order; the first one writes.
    Value value = Fold::identity();
    for (int c = 0; c < kChunk; ++c)
      value = Fold::combine(value, tile_map<AccOf<T>>(chunk, [&](AccOf<T> part) {
                              return __shfl_sync(~0u, part, c);
                            }));
    if (thread == 0) {
      if (task.whole) {
        finish_row<Monoid, T>(a, s, task.row, 0, value, task.edges.count == 0);
      } else if (t < a.num_partials) {
        store_partial(s.partials + t * a.width, value);
      }
    }
    __syncwarp();
  }
}

template <class Monoid, class T, int N, class Policy = NarrowTasks>
void launch_narrow_tasks(const Cuda& cuda, const RowFoldArgs& a) {
  constexpr int kWarps = Policy::kThreads / 32;
  const i64 most = (i64)Policy::kBlocks * kWarps;
  const i64 warps = a.csr.num_tasks < most ? a.csr.num_tasks : most;
  const unsigned grid = (unsigned)ceil_div(a.nest.slices * warps, kWarps);
  if (a.csr.perm) {
    narrow_task_kernel<Policy, Monoid, T, N, true>
        <<<grid, Policy::kThreads, 0, cuda.stream>>>(a, warps);
  } else {
    narrow_task_kernel<Policy, Monoid, T, N, false>
        <<<grid, Policy::kThreads, 0, cuda.stream>>>(a, warps);
  }
}

}  // namespace jax_index::JI_TARGET
