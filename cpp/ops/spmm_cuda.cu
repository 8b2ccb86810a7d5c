// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold.cuh"
#include "ops/spmm.h"

namespace jax_index::JI_TARGET {
namespace {

template <class T, bool Weighted, Order order, int N>
void launch(const Cuda& cuda, const RowFoldArgs& a) {
  using Program = ProductProgram<T, Weighted, order>;
  // Of words of many small numbers, the weights are read beside them as fast.
  if constexpr (Weighted && order != Order::kEither && sizeof(BitsOf<T>) == sizeof(AccOf<T>)) {
    if (a.group == a.width) return launch_staged<Program, N, true>(cuda, a);
  }
  launch_staged<Program, N>(cuda, a);
}

// Element types that GPUs are fed with get a kernel for each case; the others one that finds out.
template <class T, int N, bool Common>
void products(const Cuda& cuda, const RowFoldArgs& a) {
  if constexpr (N > 1) {
    if (!word_fits<T, N>(a, a.additive != 0) || a.group % N) return products<T, 1, Common>(cuda, a);
  }
  if constexpr (AccOf<T>(0.5) > AccOf<T>(0)) {
    if (a.additive) {
      launch_staged<AdditiveProgram<T>, Common ? N : 1>(cuda, a);
      return finish_partials<MeanFinish, Sum, T>(cuda, a);
    }
  }
  if (!a.other) {
    launch<T, false, Order::kIdentity, N>(cuda, a);
  } else if constexpr (!Common) {
    launch<T, true, Order::kEither, N>(cuda, a);
  } else if (a.csr.perm) {
    launch<T, true, Order::kPermuted, N>(cuda, a);
  } else {
    launch<T, true, Order::kIdentity, N>(cuda, a);
  }
  finish_partials<DivideFinish, Sum, T>(cuda, a);
}

// A thread owns one number.
template <class T>
void complex_products(const Cuda& cuda, const RowFoldArgs& a) {
  launch_staged<ComplexProgram<T, Order::kEither>, 2>(cuda, a);
  finish_partials<DivideFinish, Sum, T>(cuda, a);
}

}  // namespace

void run(const Cuda& cuda, const SpmmArgs& a) {
  if (a.complex && a.other) {
    if (a.dtype == DType::kF64) return complex_products<double>(cuda, a);
    return complex_products<float>(cuda, a);
  }
  switch (a.dtype) {
    case DType::kF64:
      return products<double, 2, false>(cuda, a);
    case DType::kF16:
      return products<F16, 1, false>(cuda, a);
    case DType::kBF16:
      return products<BF16, 8, true>(cuda, a);
    case DType::kU32:
      return products<u32, 1, false>(cuda, a);
    case DType::kU64:
      return products<u64, 1, false>(cuda, a);
    default:
      return products<float, 4, true>(cuda, a);
  }
}

}  // namespace jax_index::JI_TARGET
