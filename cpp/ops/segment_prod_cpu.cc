// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold_cpu.h"
#include "ops/segment_prod.h"

namespace jax_index::JI_TARGET {

void run(const Cpu& cpu, const SegmentProdArgs& a) {
  if (a.scaled) {
    if (a.dtype == DType::kF64) return RowFoldCpu<ScaledProgram<double>>{a}.run(cpu);
    return RowFoldCpu<ScaledProgram<float>>{a}.run(cpu);
  }
  switch (a.dtype) {
    case DType::kF64:
      return run_sums<Product, double>(cpu, a);
    case DType::kU32:
      return run_sums<Product, u32>(cpu, a);
    case DType::kU64:
      return run_sums<Product, u64>(cpu, a);
    default:
      return run_sums<Product, float>(cpu, a);
  }
}

}  // namespace jax_index::JI_TARGET
