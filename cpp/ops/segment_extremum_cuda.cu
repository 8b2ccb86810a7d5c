// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold.cuh"
#include "ops/segment_extremum.h"

namespace jax_index::JI_TARGET {
namespace {

template <class U, int N>
void extrema(const Cuda& cuda, const RowFoldArgs& a) {
  if constexpr (N > 1) {
    if (!word_fits<Key<U>, N>(a)) return extrema<U, 1>(cuda, a);
  }
  launch_sums<Largest, Key<U>, N>(cuda, a);
  finish_partials<AddFinish, Largest, Key<U>>(cuda, a);
}

}  // namespace

void run(const Cuda& cuda, const SegmentExtremumArgs& a) {
  switch (a.bytes) {
    case 1:
      return extrema<u8, 1>(cuda, a);
    case 2:
      return extrema<u16, 8>(cuda, a);
    case 8:
      return extrema<u64, 2>(cuda, a);
    default:
      return extrema<u32, 4>(cuda, a);
  }
}

}  // namespace jax_index::JI_TARGET
