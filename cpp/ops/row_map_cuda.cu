// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold.cuh"
#include "ops/row_map.h"

namespace jax_index::JI_TARGET {
namespace {

template <class T, int N>
void maps(const Cuda& cuda, const RowFoldArgs& a) {
  if constexpr (N > 1) {
    const bool other_fits = a.other_wide || a.other_bytes % (N * sizeof(BitsOf<T>)) == 0;
    if (!word_fits<T, N>(a) || !other_fits) return maps<T, 1>(cuda, a);
  }
  launch_wide<MapProgram<T>, N, ProductRows>(cuda, a);
  finish_partials<MeanFinish, Sum, T>(cuda, a);
}

}  // namespace

void run(const Cuda& cuda, const RowMapArgs& a) {
  switch (a.dtype) {
    case DType::kF64:
      return maps<double, 1>(cuda, a);
    case DType::kF16:
      return maps<F16, 1>(cuda, a);
    case DType::kBF16:
      return maps<BF16, 4>(cuda, a);
    default:
      return maps<float, 4>(cuda, a);
  }
}

}  // namespace jax_index::JI_TARGET
