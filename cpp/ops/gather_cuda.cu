// SPDX-License-Identifier: Apache-2.0
#include "core/tile_io.h"
#include "launch/cuda.cuh"
#include "ops/gather.h"

namespace jax_index::JI_TARGET {
namespace {

// A thread owns one word of kEdges edges; the words of an edge lie side by side in a block.
struct GatherGrid {
  i64 lanes;
  i64 lane_blocks;
  i64 edge_blocks;
  i64 first_block;
  int lanes_here;
  int edges_here;
};

template <int Bytes>
__global__ __launch_bounds__(GatherEdges::kThreads, GatherEdges::kMinBlocks) void edge_kernel(
    const __grid_constant__ GatherArgs a, const __grid_constant__ GatherGrid g) {
  using Word = WordOf<Bytes>;
  constexpr int kEdges = GatherEdges::kEdges;
  const u32 local = threadIdx.x / (u32)g.lanes_here;
  i64 edge_block = g.first_block + blockIdx.x;
  i64 lane_block = 0;
  if (g.lane_blocks > 1) {
    lane_block = edge_block % g.lane_blocks;
    edge_block /= g.lane_blocks;
  }
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = edge_block / g.edge_blocks;
    edge_block %= g.edge_blocks;
  }
  const i64 lane = lane_block * g.lanes_here + threadIdx.x % (u32)g.lanes_here;
  if (local >= (u32)g.edges_here || lane >= g.lanes) return;
  const GatherSlice s{a, slice};
  const i32* ids = s.ids();
  const u8* x = s.x();
  u8* out = s.out();
  const i64 first = edge_block * g.edges_here * kEdges + local;
  i32 id[kEdges];
  Word word[kEdges];
  JI_UNROLL
  for (int k = 0; k < kEdges; ++k) {
    const i64 e = first + (i64)k * g.edges_here;
    id[k] = e < a.csr.num_edges ? load_once<i32>(ids + e) : -1;
  }
  JI_UNROLL
  for (int k = 0; k < kEdges; ++k) {
    if ((u32)id[k] < (u32)a.csr.num_rows) {
      word[k] = load_word<Word>(x + id[k] * a.x_pitch + lane * Bytes);
    } else {
      memcpy(&word[k], a.fill, Bytes);
    }
  }
  JI_UNROLL
  for (int k = 0; k < kEdges; ++k) {
    const i64 e = first + (i64)k * g.edges_here;
    if (e < a.csr.num_edges) store_word(out + e * a.out_pitch + lane * Bytes, word[k]);
  }
}

// Rows are read once and written to their edges. The first blocks share the long rows, by the
// plan's list, and the edges of no row, which stand last in perm; the others take a few short rows
// each.
struct GatherRowGrid {
  i64 lanes;
  i64 lane_blocks;
  i64 row_blocks;  // of one slice, behind the task blocks
  i64 first_block;
  int lanes_here;
  int rows_here;
};

// Writes `word` to the edges at `count` positions from `begin` on.
template <class Word, bool Permuted>
__device__ __forceinline__ void write_edges(const GatherArgs& a, const i32* perm, u8* out,
                                            const Word& word, i32 begin, i32 count, i32 step) {
  constexpr int kEdges = GatherRows::kEdges;
  for (i32 k = 0; k < count; k += step * kEdges) {
    i32 edge[kEdges];
    JI_UNROLL
    for (int u = 0; u < kEdges; ++u) {
      edge[u] = -1;
      if (k + u * step < count)
        edge[u] = Permuted ? __ldg(perm + begin + k + u * step) : begin + k + u * step;
    }
    JI_UNROLL
    for (int u = 0; u < kEdges; ++u)
      if ((u32)edge[u] < (u32)a.csr.num_edges) store_word(out + edge[u] * a.out_pitch, word);
  }
}

template <int Bytes, bool Permuted>
__global__ __launch_bounds__(GatherRows::kThreads, GatherRows::kMinBlocks) void gather_row_kernel(
    const __grid_constant__ GatherArgs a, const __grid_constant__ GatherRowGrid g) {
  using Word = WordOf<Bytes>;
  const i32 local = (i32)(threadIdx.x / (u32)g.lanes_here);
  i64 block = g.first_block + blockIdx.x;
  i64 lane_block = 0;
  if (g.lane_blocks > 1) {
    lane_block = block % g.lane_blocks;
    block /= g.lane_blocks;
  }
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = block / (g.row_blocks + GatherRows::kTaskBlocks);
    block %= g.row_blocks + GatherRows::kTaskBlocks;
  }
  const i64 lane = lane_block * g.lanes_here + threadIdx.x % (u32)g.lanes_here;
  if (local >= g.rows_here || lane >= g.lanes) return;
  const GatherSlice s{a, slice};
  const i64 offset = lane * Bytes;
  const CsrView csr = s.csr();
  const u8* x = s.x() + offset;
  u8* out = s.out() + offset;
  if (block >= GatherRows::kTaskBlocks) {
    const i64 row = (block - GatherRows::kTaskBlocks) * g.rows_here + local;
    if (row >= a.csr.num_rows) return;
    const RowRange edges = row_range(csr, row);
    if (edges.count == 0 || (!a.no_long_row && edges.count > kLongRow)) return;
    const Word word = load_once<Word>(x + row * a.x_pitch);
    write_edges<Word, Permuted>(a, csr.perm, out, word, edges.begin, edges.count, 1);
    return;
  }
  if (!a.no_long_row) {
    for (i64 t = block; t < a.csr.num_tasks; t += GatherRows::kTaskBlocks) {
      const Task task = task_at(csr, t);
      if (task.row < 0) break;
      const Word word = load_word<Word>(x + task.row * a.x_pitch);
      write_edges<Word, Permuted>(a, csr.perm, out, word, task.edges.begin + local,
                                  task.edges.count - local, g.rows_here);
    }
  }
  Word fill;
  memcpy(&fill, a.fill, Bytes);
  const i32 kept = clamp(csr.indptr[a.csr.num_rows], 0, (i32)a.csr.num_edges);
  const i64 step = (i64)GatherRows::kTaskBlocks * g.rows_here;
  for (i64 p = kept + block * g.rows_here + local; p < a.csr.num_edges; p += step)
    write_edges<Word, Permuted>(a, csr.perm, out, fill, (i32)p, 1, 1);
}

template <int Bytes>
void launch_rows(const Cuda& cuda, const GatherArgs& a) {
  GatherRowGrid g = {};
  g.lanes = a.width / Bytes;
  g.lanes_here = (int)(g.lanes < GatherRows::kThreads ? g.lanes : GatherRows::kThreads);
  g.rows_here = GatherRows::kThreads / g.lanes_here;
  g.lane_blocks = ceil_div(g.lanes, g.lanes_here);
  g.row_blocks = ceil_div(a.csr.num_rows, g.rows_here);
  const i64 blocks = a.nest.slices * (g.row_blocks + GatherRows::kTaskBlocks) * g.lane_blocks;
  for_each_grid(blocks, [&](i64 first, unsigned grid) {
    g.first_block = first;
    if (a.csr.perm) {
      gather_row_kernel<Bytes, true><<<grid, GatherRows::kThreads, 0, cuda.stream>>>(a, g);
    } else {
      gather_row_kernel<Bytes, false><<<grid, GatherRows::kThreads, 0, cuda.stream>>>(a, g);
    }
  });
}

template <int Bytes>
void launch_edges(const Cuda& cuda, const GatherArgs& a) {
  GatherGrid g = {};
  g.lanes = a.width / Bytes;
  g.lanes_here = (int)(g.lanes < GatherEdges::kThreads ? g.lanes : GatherEdges::kThreads);
  g.edges_here = GatherEdges::kThreads / g.lanes_here;
  g.lane_blocks = ceil_div(g.lanes, g.lanes_here);
  g.edge_blocks = ceil_div(a.csr.num_edges, (i64)g.edges_here * GatherEdges::kEdges);
  for_each_grid(a.nest.slices * g.edge_blocks * g.lane_blocks, [&](i64 first, unsigned grid) {
    g.first_block = first;
    edge_kernel<Bytes><<<grid, GatherEdges::kThreads, 0, cuda.stream>>>(a, g);
  });
}

}  // namespace

void run(const Cuda& cuda, const GatherArgs& a) {
  // The largest word that divides every distance and both addresses.
  u64 all = reinterpret_cast<u64>(a.x) | reinterpret_cast<u64>(a.out) | (u64)a.width |
            (u64)a.x_pitch | (u64)a.out_pitch;
  for (int d = 0; d < a.nest.rank; ++d)
    all |= (u64)(a.nest.stride[d][GatherArgs::kX] | a.nest.stride[d][GatherArgs::kOut]);
  // A rule of shapes and dtype alone: wide rows that are read about twice or more are read once,
  // where x is too large for the cache to keep it.
  const bool by_rows = a.width >= GatherRows::kMinWidth && a.csr.num_edges >= 2 * a.csr.num_rows &&
                       a.nest.slices * a.csr.num_edges * a.width >= GatherRows::kMinBytes;
  if (by_rows && all % 16 == 0) return launch_rows<16>(cuda, a);
  if (by_rows && all % 4 == 0) return launch_rows<4>(cuda, a);
  if (all % 16 == 0) return launch_edges<16>(cuda, a);
  if (all % 8 == 0) return launch_edges<8>(cuda, a);
  if (all % 4 == 0) return launch_edges<4>(cuda, a);
  if (all % 2 == 0) return launch_edges<2>(cuda, a);
  launch_edges<1>(cuda, a);
}

}  // namespace jax_index::JI_TARGET
