// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold.cuh"
#include "ops/segment_prod.h"

namespace jax_index::JI_TARGET {
namespace {

template <class T>
void products(const Cuda& cuda, const RowFoldArgs& a) {
  launch_sums<Product, T, 1>(cuda, a);
  finish_partials<AddFinish, Product, T>(cuda, a);
}

// The accumulators are pairs: half as many columns fit into the memory of a block.
struct ScaledPartials : Partials {
  static constexpr int kColumns = Partials::kColumns / 2;
};

template <class F>
void scaled_products(const Cuda& cuda, const RowFoldArgs& a) {
  launch_wide<ScaledProgram<F>, 1>(cuda, a);
  if (!a.no_long_row && a.csr.num_edges > kGroup)
    launch_partials<ScaledFinish, ScaledProduct, Scaled<F>, ScaledPartials>(cuda, a);
}

}  // namespace

void run(const Cuda& cuda, const SegmentProdArgs& a) {
  if (a.scaled) {
    if (a.dtype == DType::kF64) return scaled_products<double>(cuda, a);
    return scaled_products<float>(cuda, a);
  }
  switch (a.dtype) {
    case DType::kF64:
      return products<double>(cuda, a);
    case DType::kU32:
      return products<u32>(cuda, a);
    case DType::kU64:
      return products<u64>(cuda, a);
    default:
      return products<float>(cuda, a);
  }
}

}  // namespace jax_index::JI_TARGET
