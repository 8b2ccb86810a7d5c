// SPDX-License-Identifier: Apache-2.0
// index_add: out[i] = x[i] + (sum over the edges e of row i of y[e]), added in the accumulator type
// and rounded once. A row with no edge keeps the bits of x.
#pragma once

#include "core/row_fold.h"
#include "core/tile_io.h"

namespace jax_index {

struct IndexAddArgs : RowFoldArgs {};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

struct IndexAdd {
  using Monoid = Sum;

  template <class T, int L, int K>
  static JI_HD void finish(const RowFoldArgs& a, const RowFoldSlice<T>& s, i64 row, i64 column,
                           const Tile<AccOf<T>, L, K>& sum, bool empty) {
    const auto* from = s.init + row * a.init_pitch + column;
    auto* to = s.out + row * a.out_pitch + column;
    if (empty) {
      // Copied as stored: decoding and encoding would quieten a signalling NaN.
      memcpy(to, from, L * K * sizeof(*to));
      return;
    }
    using Fold = TileFold<Sum, Tile<AccOf<T>, L, K>>;
    store_tile<T>(to, Fold::combine(load_tile<T, L, K>(from, a.mini), sum), a.mini);
  }
};

}  // namespace jax_index::JI_TARGET
