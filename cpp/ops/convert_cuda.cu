// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda.cuh"
#include "ops/convert.h"

namespace jax_index::JI_TARGET {
namespace {

constexpr int kConvertThreads = 256;

__global__ __launch_bounds__(kConvertThreads) void convert_kernel(
    const __grid_constant__ ConvertArgs a, i64 first_block) {
  const i64 i = (first_block + blockIdx.x) * kConvertThreads + threadIdx.x;
  if (i < a.count) convert_one(a, i);
}

}  // namespace

void run(const Cuda& cuda, const ConvertArgs& a) {
  for_each_grid(ceil_div(a.count, kConvertThreads), [&](i64 first, unsigned grid) {
    convert_kernel<<<grid, kConvertThreads, 0, cuda.stream>>>(a, first);
  });
}

}  // namespace jax_index::JI_TARGET
