// SPDX-License-Identifier: Apache-2.0
// index_add: out[i] = x[i] + (sum over the edges e of row i of y[e]), added in the accumulator type
// and rounded once. A row with no edge keeps the bits of x.
#pragma once

#include "core/row_fold.h"

namespace jax_index {

// With RowFoldArgs::init set, which is all that differs from scatter_add.
struct IndexAddArgs : RowFoldArgs {};

}  // namespace jax_index
