// SPDX-License-Identifier: Apache-2.0
// The loops around one [rows, inner] slice. A batch of data, a batch of plans and the axes on
// either side of the row axis are all loops with a stride for each array, 0 where an array is
// shared: so a batched call is one call, and nothing is transposed or broadcast in memory.
#pragma once

#include "core/hd.h"

namespace jax_index {

template <int Arrays>
struct Nest {
  static constexpr int kMaxLoops = 24;
  i32 rank = 0;
  i64 slices = 1;  // product of size
  i64 size[kMaxLoops] = {};
  i64 stride[kMaxLoops][Arrays] = {};  // in elements
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

// Where a slice begins in one array. Each array is asked for when it is needed: offsets of all of
// them would be carried through the loops of a kernel.
template <int Arrays>
JI_HD i64 offset_of(const Nest<Arrays>& nest, i64 slice, int array) {
  i64 out = 0;
  if (nest.slices > 1) {
    for (int d = nest.rank - 1; d >= 0; --d) {
      out += slice % nest.size[d] * nest.stride[d][array];
      slice /= nest.size[d];
    }
  }
  return out;
}

}  // namespace jax_index::JI_TARGET
