// SPDX-License-Identifier: Apache-2.0
// scatter_add: out[i] = sum over the edges e of row i of y[e], in the order of core/order.h.
// The adjoint of gather. A row with no edge is +0.
#pragma once

#include "core/row_fold.h"
#include "core/tile_io.h"

namespace jax_index {

struct ScatterAddArgs : RowFoldArgs {};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

struct ScatterAdd {
  using Monoid = Sum;

  template <class T, class Value>
  static JI_HD void finish(const RowFoldArgs& a, const RowFoldSlice<T>& s, i64 row, i64 column,
                           const Value& sum, bool /*empty*/) {
    store_tile<T>(s.out + row * a.out_pitch + column, sum, a.mini);
  }
};

}  // namespace jax_index::JI_TARGET
