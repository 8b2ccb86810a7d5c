// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold.cuh"
#include "ops/row_map.h"

namespace jax_index::JI_TARGET {
namespace {

template <class T>
void maps(const Cuda& cuda, const RowFoldArgs& a) {
  launch_wide<MapProgram<T>, 1>(cuda, a);
  finish_partials<MeanFinish, Sum, T>(cuda, a);
}

}  // namespace

void run(const Cuda& cuda, const RowMapArgs& a) {
  switch (a.dtype) {
    case DType::kF64:
      return maps<double>(cuda, a);
    case DType::kF16:
      return maps<F16>(cuda, a);
    case DType::kBF16:
      return maps<BF16>(cuda, a);
    default:
      return maps<float>(cuda, a);
  }
}

}  // namespace jax_index::JI_TARGET
