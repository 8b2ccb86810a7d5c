// SPDX-License-Identifier: Apache-2.0
// static_arrays: copies the arrays of a static plan into buffers of the program, for what reads
// them without being a kernel of this package.
#pragma once

#include "core/hd.h"

namespace jax_index {

struct StaticArraysArgs {
  static constexpr int kMost = 8;  // a plan has four arrays, what a graph adds to its plans two
  struct Copy {
    const void* from;
    void* to;
    i64 bytes;
  };
  Copy copies[kMost];
  int count = 0;
};

}  // namespace jax_index
