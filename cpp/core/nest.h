// SPDX-License-Identifier: Apache-2.0
// The loops around one [rows, inner] slice. A batch of data, a batch of plans and the axes on
// either side of the row axis are all loops with a stride for each array, 0 where an array is
// shared: so a batched call is one call, and nothing is transposed or broadcast in memory.
#pragma once

#include "core/hd.h"

namespace jax_index {

template <int Arrays>
struct Nest {
  static constexpr int kMaxLoops = 12;
  i32 rank = 0;
  i64 slices = 1;  // product of size
  i64 size[kMaxLoops] = {};
  i64 stride[kMaxLoops][Arrays] = {};  // in elements
};

template <int Arrays>
struct Offsets {
  i64 of[Arrays];
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

template <int Arrays>
JI_HD Offsets<Arrays> offsets(const Nest<Arrays>& nest, i64 slice) {
  Offsets<Arrays> out = {};
  for (int d = nest.rank - 1; d >= 0; --d) {
    const i64 index = slice % nest.size[d];
    slice /= nest.size[d];
    JI_UNROLL
    for (int k = 0; k < Arrays; ++k) out.of[k] += index * nest.stride[d][k];
  }
  return out;
}

}  // namespace jax_index::JI_TARGET
