// SPDX-License-Identifier: Apache-2.0
// Sums of rows of few words. The edges of neighbouring rows are neighbours in the CSR: a warp
// copies their words to shared memory with all its lanes, then each thread folds its row from
// there, in order. Rows that cross a stage keep their fold in registers. The first blocks take the
// tasks of long rows.
#pragma once

#include "launch/row_fold_tasks.cuh"

namespace jax_index::JI_TARGET {

struct NarrowGrid {
  TaskGrid tasks;
  bool staged_tasks;  // a warp stages a task; else blocks fold tasks
  i64 row_blocks;     // rows that one warp takes are one block of rows
  i64 warps;
  i64 first_block;
  int lanes;      // words of a row
  int rows_here;  // rows of a warp
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
__device__ __forceinline__ void stage_edges(const RowFoldArgs& a, const i32* perm,
                                            const BitsOf<T>* data, i32 at, i32 count, u32 lanes,
                                            RawTile<T, 1, N>* stage) {
  const u32 words = (u32)count * lanes;
  for (u32 w = threadIdx.x % 32; w < words; w += 32 * Loads) {
    i32 edge[Loads];
    JI_UNROLL
    for (int u = 0; u < Loads; ++u) {
      const u32 k = w + 32 * u;
      const i32 p = at + (i32)(lanes == 1 ? k : k / lanes);
      edge[u] = -1;
      if (k < words) edge[u] = Permuted ? __ldg(perm + p) : p;
    }
    JI_UNROLL
    for (int u = 0; u < Loads; ++u) {
      const u32 k = w + 32 * u;
      const u32 c = lanes == 1 ? 0 : k % lanes;
      auto* to = stage + (Padded ? k + k / kChunk : k);
      if ((u32)edge[u] < (u32)a.csr.num_edges) {
        stage_word(to, row_at(data, edge[u], a.edge_bytes) + c * N);
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

// A task of a row of one small word: a warp stages it, each thread folds one chunk of it.
template <class Policy, class Monoid, class T, int N, bool Permuted>
__device__ __forceinline__ void fold_staged_tasks(const RowFoldArgs& a, const TaskGrid& g,
                                                  i64 block, RawTile<T, 1, N>* stage) {
  using Value = Tile<AccOf<T>, 1, N>;
  using Fold = TileFold<Monoid, Value>;
  constexpr int kWarps = Policy::kThreads / 32;
  const RowFoldSlice<T> s{a, block / g.per_slice};
  const CsrView csr = s.csr();
  const BitsOf<T>* data = s.edges();
  const int thread = threadIdx.x % 32;
  for (i64 t = block % g.per_slice * kWarps + threadIdx.x / 32; t < csr.num_tasks;
       t += g.per_slice * kWarps) {
    if (csr.tasks[2 * t] < 0) return;
    const Task task = task_at(csr, t);
    stage_edges<Monoid, T, N, Policy::kLoads, Permuted, true>(a, csr.perm, data, task.edges.begin,
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
    if (thread == 0 && task.row >= 0) {
      if (task.whole) {
        AddFinish::store<Monoid, T, 1, N>(s, task.row, 0, value, task.edges.count);
      } else if (t < a.num_partials) {
        store_partial(s.partials() + t * a.width, value);
      }
    }
    __syncwarp();
  }
}

template <class Policy, class Monoid, class T, int N>
constexpr bool kStagesTasks =
    N * sizeof(BitsOf<T>) * (kGroup + kChunk) <= (size_t)Policy::kStageBytes + 256;

template <class Policy, class Monoid, class T, int N, bool Permuted>
__global__ __launch_bounds__(Policy::kThreads, Policy::kMinBlocks) void narrow_kernel(
    const __grid_constant__ RowFoldArgs a, const __grid_constant__ NarrowGrid g) {
  using Value = Tile<AccOf<T>, 1, N>;
  using Word = RawTile<T, 1, N>;
  constexpr int kWarps = Policy::kThreads / 32;
  constexpr int kStage = Policy::kStageBytes / (int)sizeof(Word);
  // Room for a stage of every warp, its padding included, or for the chunk results of a block.
  __shared__ __align__(16) unsigned char shared[kWarps * (Policy::kStageBytes + 256)];
  Word* stage = reinterpret_cast<Word*>(shared + threadIdx.x / 32 * (Policy::kStageBytes + 256));
  i64 row_block = g.first_block + blockIdx.x - g.tasks.blocks;
  if (row_block < 0) {
    row_block += g.tasks.blocks;
    if constexpr (kStagesTasks<Policy, Monoid, T, N>) {
      if (g.staged_tasks)
        return fold_staged_tasks<Policy, Monoid, T, N, Permuted>(a, g.tasks, row_block, stage);
    }
    return fold_tasks<Policy, SumProgram<Monoid, T, Permuted ? Order::kPermuted : Order::kIdentity>,
                      N>(a, g.tasks, row_block, shared);
  }
  row_block = row_block * kWarps + threadIdx.x / 32;
  if (row_block >= g.warps) return;
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = row_block / g.row_blocks;
    row_block %= g.row_blocks;
  }
  const RowFoldSlice<T> s{a, slice};
  const CsrView csr = s.csr();
  const BitsOf<T>* data = s.edges();
  const u32 thread = threadIdx.x % 32;
  const u32 lanes = (u32)g.lanes;
  const u32 local = thread / lanes;
  const u32 lane = thread % lanes;
  const i64 row = row_block * g.rows_here + local;
  const bool mine = local < (u32)g.rows_here && row < a.csr.num_rows;
  RowRange edges = {0, 0};
  if (mine) edges = row_range(csr, row);
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
      stage_edges<Monoid, T, N, Policy::kLoads, Permuted, false>(a, csr.perm, data, at, count,
                                                                 lanes, stage);
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
  if (mine && !is_long)
    AddFinish::store<Monoid, T, 1, N>(s, row, lane * N, fold.finish(), edges.count);
}

template <class Monoid, class T, int N, class Policy = NarrowRows>
void launch_narrow(const Cuda& cuda, const RowFoldArgs& a) {
  constexpr int kWarps = Policy::kThreads / 32;
  NarrowGrid g = {};
  g.lanes = (int)(a.width / N);
  g.tasks = task_grid<Policy, Tile<AccOf<T>, 1, N>>(a, g.lanes);
  g.staged_tasks = kStagesTasks<Policy, Monoid, T, N> && g.lanes == 1;
  g.rows_here = 32 / g.lanes;
  g.row_blocks = ceil_div(a.csr.num_rows, g.rows_here);
  g.warps = a.nest.slices * g.row_blocks;
  for_each_grid(g.tasks.blocks + ceil_div(g.warps, kWarps), [&](i64 first, unsigned grid) {
    g.first_block = first;
    if (a.csr.perm) {
      narrow_kernel<Policy, Monoid, T, N, true><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
    } else {
      narrow_kernel<Policy, Monoid, T, N, false><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
    }
  });
}

}  // namespace jax_index::JI_TARGET
