// SPDX-License-Identifier: Apache-2.0
#include "core/tile_io.h"
#include "launch/cuda.cuh"
#include "ops/gather.h"

namespace jax_index::JI_TARGET {
namespace {

// A thread owns one word of kGatherEdges edges; the words of an edge lie side by side in a block.
template <int Bytes>
__global__ __launch_bounds__(CudaPolicy::kThreads, CudaPolicy::kMinBlocks) void gather_kernel(
    const __grid_constant__ GatherArgs a, i64 lanes, i64 edge_blocks, i64 lane_blocks, i64 blocks) {
  using W = WordOf<Bytes>;
  constexpr int kEdges = CudaPolicy::kGatherEdges;
  const int lanes_here = (int)(lanes < CudaPolicy::kThreads ? lanes : CudaPolicy::kThreads);
  const int edges_here = CudaPolicy::kThreads / lanes_here;
  const int local = (int)threadIdx.x / lanes_here;
  if (local >= edges_here) return;
  for (i64 block = blockIdx.x; block < blocks; block += gridDim.x) {
    const GatherSlice s(a, block / (edge_blocks * lane_blocks));
    const i64 rest = block % (edge_blocks * lane_blocks);
    const i64 lane = rest % lane_blocks * lanes_here + (int)threadIdx.x % lanes_here;
    const i64 first = rest / lane_blocks * edges_here * kEdges + local;
    if (lane >= lanes) continue;
    W word[kEdges];
    JI_UNROLL
    for (int k = 0; k < kEdges; ++k) {
      const i64 e = first + (i64)k * edges_here;
      if (e >= a.num_edges) continue;
      const u8* from = s.source(a, e);
      if (from) {
        word[k] = load_word<W>(from + lane * Bytes);
      } else {
        memcpy(&word[k], a.fill, Bytes);
      }
    }
    JI_UNROLL
    for (int k = 0; k < kEdges; ++k) {
      const i64 e = first + (i64)k * edges_here;
      if (e < a.num_edges) store_word(s.out + e * a.out_pitch + lane * Bytes, word[k]);
    }
  }
}

template <int Bytes>
void launch(const Cuda& cuda, const GatherArgs& a) {
  const i64 lanes = a.width / Bytes;
  const i64 lanes_here = lanes < CudaPolicy::kThreads ? lanes : CudaPolicy::kThreads;
  const i64 per_block = CudaPolicy::kThreads / lanes_here * CudaPolicy::kGatherEdges;
  const i64 edge_blocks = (a.num_edges + per_block - 1) / per_block;
  const i64 lane_blocks = (lanes + lanes_here - 1) / lanes_here;
  const i64 blocks = a.nest.slices * edge_blocks * lane_blocks;
  const i64 grid = blocks < CudaPolicy::kMaxGrid ? blocks : CudaPolicy::kMaxGrid;
  gather_kernel<Bytes><<<(unsigned)grid, CudaPolicy::kThreads, 0, cuda.stream>>>(
      a, lanes, edge_blocks, lane_blocks, blocks);
}

}  // namespace

void run(const Cuda& cuda, const GatherArgs& a) {
  // The largest word that divides every distance and both addresses.
  u64 all = reinterpret_cast<u64>(a.x) | reinterpret_cast<u64>(a.out) | (u64)a.width |
            (u64)a.x_pitch | (u64)a.out_pitch;
  for (int d = 0; d < a.nest.rank; ++d)
    all |= (u64)(a.nest.stride[d][GatherArgs::kX] | a.nest.stride[d][GatherArgs::kOut]);
  if (all % 16 == 0) return launch<16>(cuda, a);
  if (all % 8 == 0) return launch<8>(cuda, a);
  if (all % 4 == 0) return launch<4>(cuda, a);
  if (all % 2 == 0) return launch<2>(cuda, a);
  launch<1>(cuda, a);
}

}  // namespace jax_index::JI_TARGET
