// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda.cuh"
#include "ops/static_arrays.h"

namespace jax_index::JI_TARGET {

void run(const Cuda& cuda, const StaticArraysArgs& a) {
  for (int k = 0; k < a.count; ++k) {
    const StaticArraysArgs::Copy& copy = a.copies[k];
    cudaMemcpyAsync(copy.to, copy.from, (size_t)copy.bytes, cudaMemcpyDeviceToDevice, cuda.stream);
  }
}

}  // namespace jax_index::JI_TARGET
