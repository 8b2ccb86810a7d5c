// SPDX-License-Identifier: Apache-2.0
// scatter_add: out[i] = sum over the edges e of row i of y[e], in the order of core/order.h.
// The adjoint of gather. A row with no edge is +0.
#pragma once

#include "core/row_fold.h"

namespace jax_index {

struct ScatterAddArgs : RowFoldArgs {};

}  // namespace jax_index
