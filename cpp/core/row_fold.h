// SPDX-License-Identifier: Apache-2.0
// Arguments shared by every op that folds the edges of a row, and the memory side of a tile.
#pragma once

#include "core/csr.h"
#include "core/nest.h"
#include "core/tile_io.h"

namespace jax_index {

enum class DType : i32 { kF32, kF64, kF16, kBF16, kF8, kU8, kU16, kU32, kU64 };

// out[slice, row, :] = init[slice, row, :] + fold over the edges e of the row of edges[slice, e, :]
struct RowFoldArgs {
  enum Array { kEdges, kInit, kOut, kIds, kIndptr, kPerm, kTasks, kArrays };
  const void* edges = nullptr;  // [slices, num_edges, width]
  const void* init = nullptr;   // [slices, num_rows, width], ops that add to an array; else null
  void* out = nullptr;          // [slices, num_rows, width]
  void* partials = nullptr;     // [slices, num_partials, width] of the accumulator type
  i64 num_partials = 0;
  CsrView csr;  // of slice 0
  bool no_long_row = false;
  i64 width = 0;       // elements; contiguous
  i64 edge_pitch = 0;  // elements from edge to edge
  i64 init_pitch = 0;
  i64 out_pitch = 0;
  Nest<kArrays> nest;
  DType dtype = DType::kF32;
  MiniFloat mini;  // kF8 only
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

// The arrays of one slice.
template <class T>
struct RowFoldSlice {
  using Bits = BitsOf<T>;
  const RowFoldArgs& a;
  i64 slice;

  JI_HD i64 at(int array) const { return offset_of(a.nest, slice, array); }
  JI_HD const Bits* edges() const {
    return static_cast<const Bits*>(a.edges) + at(RowFoldArgs::kEdges);
  }
  JI_HD const Bits* init() const {
    return static_cast<const Bits*>(a.init) + at(RowFoldArgs::kInit);
  }
  JI_HD Bits* out() const { return static_cast<Bits*>(a.out) + at(RowFoldArgs::kOut); }
  JI_HD AccOf<T>* partials() const {
    return static_cast<AccOf<T>*>(a.partials) + slice * a.num_partials * a.width;
  }
  JI_HD CsrView csr() const {
    CsrView csr = a.csr;
    csr.ids += at(RowFoldArgs::kIds);
    csr.indptr += at(RowFoldArgs::kIndptr);
    if (csr.perm) csr.perm += at(RowFoldArgs::kPerm);
    csr.tasks += at(RowFoldArgs::kTasks);
    return csr;
  }
};

// Ends the fold of a row. With an initial array, the row's own value is added in the accumulator
// type; a row with no edge then keeps its bits as stored, since decoding and encoding would quieten
// a signalling NaN.
template <class Monoid, class T, int L, int K>
JI_HD void finish_row(const RowFoldSlice<T>& s, i64 row, i64 column,
                      const Tile<AccOf<T>, L, K>& value, bool empty) {
  const RowFoldArgs& a = s.a;
  auto* to = s.out() + row * a.out_pitch + column;
  if (a.init == nullptr) {
    store_tile<T, L, K>(to, value, a.mini);
    return;
  }
  const auto* from = s.init() + row * a.init_pitch + column;
  if (empty) {
    for (int k = 0; k < L * K; ++k) to[k] = from[k];
    return;
  }
  using Fold = TileFold<Monoid, Tile<AccOf<T>, L, K>>;
  store_tile<T, L, K>(to, Fold::combine(load_tile<T, L, K>(from, a.mini), value), a.mini);
}

}  // namespace jax_index::JI_TARGET
