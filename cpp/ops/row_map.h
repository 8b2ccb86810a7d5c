// SPDX-License-Identifier: Apache-2.0
// row_map: out[i] = sum over the edges e of row i of what a RowMap makes of y[e], a second edge
// value and the row's own value: the sums inside mean, variance, softmax and the gradients of an
// extremum.
#pragma once

#include "core/row_fold.h"

namespace jax_index {

struct RowMapArgs : RowFoldArgs {};

}  // namespace jax_index
