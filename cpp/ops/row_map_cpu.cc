// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold_cpu.h"
#include "ops/row_map.h"

namespace jax_index::JI_TARGET {
namespace {

template <class T>
void run_maps(const Cpu& cpu, const RowFoldArgs& a) {
  RowFoldCpu<MapProgram<T>>{a}.run(cpu);
}

}  // namespace

void run(const Cpu& cpu, const RowMapArgs& a) {
  switch (a.dtype) {
    case DType::kF64:
      return run_maps<double>(cpu, a);
    case DType::kF16:
      return run_maps<F16>(cpu, a);
    case DType::kBF16:
      return run_maps<BF16>(cpu, a);
    default:
      return run_maps<float>(cpu, a);
  }
}

}  // namespace jax_index::JI_TARGET
