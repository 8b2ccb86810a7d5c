// SPDX-License-Identifier: Apache-2.0
// segment_extremum: out[i] = the largest or the smallest y[e] over the edges e of row i. Numbers
// are compared as unsigned keys (core/types.h), so one fold serves every dtype and both directions.
// A row with no edge gets the dtype's least (largest) value.
#pragma once

#include "core/row_fold.h"

namespace jax_index {

struct SegmentExtremumArgs : RowFoldArgs {
  i64 bytes = 4;  // of an element
};

}  // namespace jax_index
