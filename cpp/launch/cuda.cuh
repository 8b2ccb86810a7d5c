// SPDX-License-Identifier: Apache-2.0
// The context of a CUDA call, and the launch parameters of every kernel, in one place.
#pragma once

#include <cuda_runtime_api.h>

#include "core/hd.h"

namespace jax_index {

struct Cuda {
  cudaStream_t stream = nullptr;
};

// Small blocks with few registers keep many loads in flight; blocks beyond the grid limit loop.
struct CudaPolicy {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 12;
  static constexpr int kRowLoads = 4;       // row loads of a thread before the first add
  static constexpr int kTaskThreads = 256;  // threads that fold one task of a long row
  static constexpr int kTaskBlocks = 264;   // blocks that share the list of tasks, for each slice
  static constexpr int kGatherEdges = 4;    // edges copied by a thread of gather
  static constexpr i64 kMaxGrid = 0x7fffffff;
};

}  // namespace jax_index
