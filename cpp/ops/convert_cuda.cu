// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda.cuh"
#include "ops/convert.h"

namespace jax_index::JI_TARGET {
namespace {

__global__ __launch_bounds__(CudaPolicy::kThreads) void convert_kernel(
    const __grid_constant__ ConvertArgs a) {
  const i64 stride = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += stride)
    convert_one(a, i);
}

}  // namespace

void run(const Cuda& cuda, const ConvertArgs& a) {
  const i64 blocks = (a.count + CudaPolicy::kThreads - 1) / CudaPolicy::kThreads;
  const i64 grid = blocks < CudaPolicy::kMaxGrid ? blocks : CudaPolicy::kMaxGrid;
  convert_kernel<<<(unsigned)grid, CudaPolicy::kThreads, 0, cuda.stream>>>(a);
}

}  // namespace jax_index::JI_TARGET
