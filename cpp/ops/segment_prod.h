// SPDX-License-Identifier: Apache-2.0
// segment_prod: out[i] = product over the edges e of row i of y[e], in the order of core/order.h,
// from 1. A row with no edge is 1.
//
// `scaled`: out[i] is a pair instead, the value of the product with an exponent of its own and its
// code (core/scaled.h), of which pointwise makes the product of the others for each edge.
#pragma once

#include "core/row_items.h"
#include "core/scaled.h"

namespace jax_index {

struct SegmentProdArgs : RowFoldArgs {
  bool scaled = false;
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

struct ScaledFinish {
  template <class Monoid, class T, int L, int K>
  static JI_HD void store(const RowFoldSlice<T>& s, i64 row, i64 column,
                          const Tile<AccOf<T>, L, K>& number, i32) {
    using F = BitsOf<T>;
    // Distances are counted in pairs.
    F* to = static_cast<F*>(s.a.out) + 2 * (s.at(RowFoldArgs::kOut) + row * s.a.out_pitch + column);
    tile_each(number, [&](int k, const ScaledLanes<F, L>& part) {
      const Vec<F, L> code = scaled_code<F, L>(part);
      F values[L];
      F codes[L];
      memcpy(values, &part.value, sizeof(values));
      memcpy(codes, &code, sizeof(codes));
      for (int j = 0; j < L; ++j) {
        to[2 * (k * L + j)] = values[j];
        to[2 * (k * L + j) + 1] = codes[j];
      }
    });
  }
};

template <class F>
struct ScaledProgram : SumProgram<ScaledProduct, Scaled<F>, Order::kEither> {
  using Finish = ScaledFinish;
};

}  // namespace jax_index::JI_TARGET
