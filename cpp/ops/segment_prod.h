// SPDX-License-Identifier: Apache-2.0
// segment_prod: out[i] = product over the edges e of row i of y[e], in the order of core/order.h,
// from 1. A row with no edge is 1.
#pragma once

#include "core/row_fold.h"

namespace jax_index {

struct SegmentProdArgs : RowFoldArgs {};

}  // namespace jax_index
