// SPDX-License-Identifier: Apache-2.0
// The CUDA schedule of a row fold: long rows by tasks, short rows by threads of one word or, where
// rows are narrow, staged through shared memory. No sum is shared between threads except through
// chunk results, which are folded in order.
#pragma once

#include "launch/row_fold_narrow.cuh"
#include "launch/row_fold_staged.cuh"
#include "launch/row_fold_wide.cuh"

namespace jax_index::JI_TARGET {

// Element types that are summed often enough to pay for kernels of their own for narrow rows: each
// costs seconds of compilation for every architecture.
template <class T>
constexpr bool kCommon = false;
template <>
constexpr bool kCommon<float> = true;
template <>
constexpr bool kCommon<BF16> = true;
template <>
constexpr bool kCommon<F16> = true;

template <class Monoid, class T, int N>
void launch_sums(const Cuda& cuda, const RowFoldArgs& a) {
  if (a.csr.perm) return launch_wide<SumProgram<Monoid, T, Order::kPermuted>, N>(cuda, a);
  launch_wide<SumProgram<Monoid, T, Order::kIdentity>, N>(cuda, a);
}

template <class Monoid, class T, int N>
void launch_rows(const Cuda& cuda, const RowFoldArgs& a) {
  if constexpr (kCommon<T>) {
    // Short rows of sorted scalars are read in order anyhow: a thread for each row is the faster
    // way.
    const bool scalars = a.width == 1 && a.csr.perm == nullptr && a.no_long_row;
    if (a.width / N <= NarrowRows::kMaxLanes && !scalars)
      return launch_narrow<Monoid, T, N>(cuda, a);
  }
  launch_sums<Monoid, T, N>(cuda, a);
}

// Only a row of more than kGroup edges leaves partials.
template <class Finish, class Monoid, class T>
void finish_partials(const Cuda& cuda, const RowFoldArgs& a) {
  if (!a.no_long_row && a.csr.num_edges > kGroup) launch_partials<Finish, Monoid, T>(cuda, a);
}

// Whether a thread may own N elements: every distance and address is a multiple of them. The row
// operand counts where it is read word by word.
template <class T, int N>
bool word_fits(const RowFoldArgs& a, bool row_words = true) {
  u64 distances = (u64)a.width | (u64)a.out_pitch;
  u64 addresses = reinterpret_cast<u64>(a.edges) | (u64)a.edge_bytes | reinterpret_cast<u64>(a.out);
  for (int d = 0; d < a.nest.rank; ++d)
    distances |= (u64)(a.nest.stride[d][RowFoldArgs::kEdges] | a.nest.stride[d][RowFoldArgs::kOut]);
  if (row_words) {
    distances |= (u64)a.row_pitch;
    addresses |= reinterpret_cast<u64>(a.row);
    for (int d = 0; d < a.nest.rank; ++d) distances |= (u64)a.nest.stride[d][RowFoldArgs::kRow];
  }
  return distances % N == 0 && addresses % (N * sizeof(BitsOf<T>)) == 0;
}

// The most elements, among the listed numbers, that a thread may own.
template <class Monoid, class T, int N, int... Fewer>
void widest(const Cuda& cuda, const RowFoldArgs& a) {
  if constexpr (sizeof...(Fewer) > 0) {
    if (!word_fits<T, N>(a)) return widest<Monoid, T, Fewer...>(cuda, a);
  }
  launch_rows<Monoid, T, N>(cuda, a);
  finish_partials<AddFinish, Monoid, T>(cuda, a);
}

// Dtypes that fill GPUs get every width of a word; the others the widest and one element.
template <class Monoid>
void run_row_fold(const Cuda& cuda, const RowFoldArgs& a) {
  switch (a.dtype) {
    case DType::kF32:
      return widest<Monoid, float, 4, 2, 1>(cuda, a);
    case DType::kF64:
      return widest<Monoid, double, 2, 1>(cuda, a);
    case DType::kF16:
      return widest<Monoid, F16, 8, 1>(cuda, a);
    case DType::kBF16:
      return widest<Monoid, BF16, 8, 2, 1>(cuda, a);
    case DType::kF8:
      return widest<Monoid, F8, 8, 1>(cuda, a);
    case DType::kU8:
      return widest<Monoid, u8, 8, 1>(cuda, a);
    case DType::kU16:
      return widest<Monoid, u16, 8, 1>(cuda, a);
    case DType::kU32:
      return widest<Monoid, u32, 4, 1>(cuda, a);
    case DType::kU64:
      return widest<Monoid, u64, 2, 1>(cuda, a);
  }
}

}  // namespace jax_index::JI_TARGET
