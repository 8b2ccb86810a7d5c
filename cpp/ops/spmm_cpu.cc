// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold_cpu.h"
#include "ops/spmm.h"

namespace jax_index::JI_TARGET {
namespace {

template <class T>
void run_type(const Cpu& cpu, const RowFoldArgs& a) {
  if constexpr (AccOf<T>(0.5) > AccOf<T>(0)) {
    if (a.additive) return RowFoldCpu<AdditiveProgram<T>>{a}.run(cpu);
  }
  if constexpr (sizeof(BitsOf<T>) >= 4 && AccOf<T>(0.5) > AccOf<T>(0)) {
    if (a.complex && a.other && a.group == 2)
      return RowFoldCpu<ComplexProgram<T, Order::kEither, true>>{a}.run(cpu);
    if (a.complex && a.other) return RowFoldCpu<ComplexProgram<T, Order::kEither>>{a}.run(cpu);
  }
  if (!a.other) return RowFoldCpu<ProductProgram<T, false, Order::kEither>>{a}.run(cpu);
  if constexpr (sizeof(BitsOf<T>) == sizeof(AccOf<T>)) {
    if (a.group == 1) return RowFoldCpu<ProductProgram<T, true, Order::kEither, true>>{a}.run(cpu);
  }
  RowFoldCpu<ProductProgram<T, true, Order::kEither>>{a}.run(cpu);
}

}  // namespace

void run(const Cpu& cpu, const SpmmArgs& a) {
  switch (a.dtype) {
    case DType::kF64:
      return run_type<double>(cpu, a);
    case DType::kF16:
      return run_type<F16>(cpu, a);
    case DType::kBF16:
      return run_type<BF16>(cpu, a);
    case DType::kU32:
      return run_type<u32>(cpu, a);
    case DType::kU64:
      return run_type<u64>(cpu, a);
    default:
      return run_type<float>(cpu, a);
  }
}

}  // namespace jax_index::JI_TARGET
