// SPDX-License-Identifier: Apache-2.0
// Arguments shared by every op that folds the edges of a row, and how a row ends.
#pragma once

#include "core/csr.h"
#include "core/math.h"
#include "core/nest.h"
#include "core/tile_io.h"

namespace jax_index {

enum class DType : i32 { kF32, kF64, kF16, kBF16, kF8, kU8, kU16, kU32, kU64 };

// What an edge contributes to a fold with a row value r and up to two edge values x and y.
enum class RowMap : i32 {
  kValue,       // x
  kExp,         // exp(x - r); 0 where r is -inf
  kSquare,      // fma(d, d, sum), d = x - r
  kProduct,     // fma(x, y, sum)
  kTies,        // 1 where x is r (zeros are equal, NaN is NaN)
  kTieProduct,  // y where x is r
};

// out[slice, row, :] = finish(fold over the edges e of the row of what the edge contributes)
struct RowFoldArgs {
  enum Array { kEdges, kOther, kRow, kOut, kIds, kIndptr, kPerm, kTasks, kSource, kArrays };
  const void* edges = nullptr;  // [slices, num_sources, width]; what is summed
  const void* other = nullptr;  // [slices, num_edges, width / group]: weights, or y of a RowMap
  const void* row = nullptr;    // [slices, num_rows, ...]: what a row is added to, divided by, …
  void* out = nullptr;          // [slices, num_rows, width]
  void* partials = nullptr;     // [slices, num_partials, width] of the accumulator type
  i64 num_partials = 0;
  CsrView csr;                  // of slice 0
  const i32* source = nullptr;  // [num_edges]: the row of `edges` at each position of the CSR;
                                // null: the edge itself
  i64 num_sources = 0;
  bool no_long_row = false;
  i64 width = 0;       // elements; contiguous
  i64 group = 0;       // neighbouring elements that share a weight and a divisor
  i64 edge_bytes = 0;  // from edge to edge
  i64 other_bytes = 0;
  i64 row_pitch = 0;  // elements from row to row
  i64 out_pitch = 0;
  Nest<kArrays> nest;
  DType dtype = DType::kF32;
  bool complex = false;     // an element and the next one are a number; widths count elements
  MiniFloat mini;           // kF8, and the keys of an extremum
  bool other_wide = false;  // stored in the accumulator type
  bool row_wide = false;
  bool out_wide = false;
  RowMap map = RowMap::kValue;
  bool mean = false;  // of a RowMap: divided by the number of edges
  i32 additive = 0;   // of spmm: 1 the slope of leaky_relu, 2 its value, at x + the row operand
  double slope = 0;
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

// The arrays of one slice.
template <class T>
struct RowFoldSlice {
  using Bits = BitsOf<T>;
  using Acc = AccOf<T>;
  const RowFoldArgs& a;
  i64 slice;

  JI_HD i64 at(int array) const { return offset_of(a.nest, slice, array); }
  JI_HD const Bits* edges() const {
    return static_cast<const Bits*>(a.edges) + at(RowFoldArgs::kEdges);
  }
  JI_HD const Bits* row() const { return static_cast<const Bits*>(a.row) + at(RowFoldArgs::kRow); }
  JI_HD const Acc* row_acc() const {
    return static_cast<const Acc*>(a.row) + at(RowFoldArgs::kRow);
  }
  JI_HD Bits* out() const { return static_cast<Bits*>(a.out) + at(RowFoldArgs::kOut); }
  JI_HD Acc* out_acc() const { return static_cast<Acc*>(a.out) + at(RowFoldArgs::kOut); }
  JI_HD Acc* partials() const {
    return static_cast<Acc*>(a.partials) + slice * a.num_partials * a.width;
  }
  JI_HD const i32* source() const {
    return a.source ? a.source + at(RowFoldArgs::kSource) : nullptr;
  }
  // The other array, from an element of its first row on.
  JI_HD const u8* other_at(i64 element) const {
    const i64 size = a.other_wide ? sizeof(Acc) : sizeof(Bits);
    return static_cast<const u8*>(a.other) + (at(RowFoldArgs::kOther) + element) * size;
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

// The same for a worker of many rows: where rows end is found once.
template <class T>
struct KeptSlice : RowFoldSlice<T> {
  using typename RowFoldSlice<T>::Bits;
  using typename RowFoldSlice<T>::Acc;
  void* to;
  const void* own;

  JI_HD explicit KeptSlice(const RowFoldSlice<T>& s) : RowFoldSlice<T>(s), own(nullptr) {
    if (s.a.out_wide) {
      to = s.out_acc();
    } else {
      to = s.out();
    }
    if (s.a.row) own = s.a.row_wide ? (const void*)s.row_acc() : (const void*)s.row();
  }
  JI_HD const Bits* row() const { return static_cast<const Bits*>(own); }
  JI_HD const Acc* row_acc() const { return static_cast<const Acc*>(own); }
  JI_HD Bits* out() const { return static_cast<Bits*>(to); }
  JI_HD Acc* out_acc() const { return static_cast<Acc*>(to); }
};

// An operand that is stored in the element type or, `wide`, in the accumulator type.
template <class T>
JI_HD AccOf<T> load_either(const void* base, i64 element, bool wide, const MiniFloat& mini) {
  if (wide) return static_cast<const AccOf<T>*>(base)[element];
  return Codec<T>::template decode<1>(static_cast<const BitsOf<T>*>(base)[element], mini);
}
template <class T, int L, int K>
JI_HD Tile<AccOf<T>, L, K> load_tile_either(const void* base, i64 element, bool wide,
                                            const MiniFloat& mini) {
  if (wide) return load_partial<AccOf<T>, L, K>(static_cast<const AccOf<T>*>(base) + element);
  return load_tile<T, L, K>(static_cast<const BitsOf<T>*>(base) + element, mini);
}

// The place of a row in an array whose rows are `pitch` bytes apart. The index is not negative: on
// a GPU its product with the pitch is then two instructions, that of 64-bit numbers many.
template <class Bits>
JI_HD const Bits* row_at(const Bits* first, i32 index, i64 pitch) {
  return reinterpret_cast<const Bits*>(reinterpret_cast<const u8*>(first) +
                                       (u64)(u32)index * (u64)pitch);
}

// The group that a column belongs to. Division of 64-bit numbers is a long subroutine on a GPU.
JI_HD i64 group_of_column(const RowFoldArgs& a, i64 column) {
  if (a.group == a.width) return 0;
  if ((u64)(column | a.group) >> 32) return column / a.group;
  return (u32)column / (u32)a.group;
}

// How the fold of a row ends. `count`: its edges.

// With a row operand, the row's own value is added in the accumulator type; a row with no edge then
// keeps its bits as stored, since decoding and encoding would quieten a signalling NaN.
struct AddFinish {
  template <class Monoid, class T, int L, int K, class Slice>
  static JI_HD void store(const Slice& s, i64 row, i64 column, const Tile<AccOf<T>, L, K>& value,
                          i32 count) {
    const RowFoldArgs& a = s.a;
    auto* to = s.out() + row * a.out_pitch + column;
    if (a.row == nullptr) {
      store_tile<T, L, K>(to, value, a.mini);
      return;
    }
    const auto* from = s.row() + row * a.row_pitch + column;
    if (count == 0) {
      for (int k = 0; k < L * K; ++k) to[k] = from[k];
      return;
    }
    using Fold = TileFold<Monoid, Tile<AccOf<T>, L, K>>;
    store_tile<T, L, K>(to, Fold::combine(load_tile<T, L, K>(from, a.mini), value), a.mini);
  }
};

template <class T, int L, int K, class Slice>
JI_HD void store_either(const Slice& s, i64 row, i64 column, const Tile<AccOf<T>, L, K>& value) {
  const i64 at = row * s.a.out_pitch + column;
  if (s.a.out_wide) {
    store_partial<AccOf<T>, L, K>(s.out_acc() + at, value);
  } else {
    store_tile<T, L, K>(s.out() + at, value, s.a.mini);
  }
}

// With a row operand, the sum is divided by it; a row whose divisor is 0 gives 0. The divisors are
// of the accumulator type, one for each group.
struct DivideFinish {
  template <class Monoid, class T, int L, int K, class Slice>
  static JI_HD void store(const Slice& s, i64 row, i64 column, const Tile<AccOf<T>, L, K>& value,
                          i32) {
    using A = AccOf<T>;
    const RowFoldArgs& a = s.a;
    if (a.row == nullptr) return store_either<T, L, K>(s, row, column, value);
    const A* divisors = s.row_acc() + row * a.row_pitch;
    if (a.group == 1) {
      const auto divisor = load_partial<A, L, K>(divisors + column);
      return store_either<T, L, K>(s, row, column,
                                   tile_zip(value, divisor, [](Vec<A, L> v, Vec<A, L> d) {
                                     return select<A, L>(d == Vec<A, L>{}, Vec<A, L>{}, v / d);
                                   }));
    }
    const A divisor = divisors[group_of_column(a, column)];
    store_either<T, L, K>(s, row, column, tile_map<A>(value, [&](Vec<A, L> v) {
                            return divisor == A(0) ? Vec<A, L>{} : v / divisor;
                          }));
  }
};

// The sum, or with `mean` the sum divided by the number of edges; an empty row is 0.
struct MeanFinish {
  template <class Monoid, class T, int L, int K, class Slice>
  static JI_HD void store(const Slice& s, i64 row, i64 column, const Tile<AccOf<T>, L, K>& value,
                          i32 count) {
    using A = AccOf<T>;
    if (!s.a.mean || count == 0) return store_either<T, L, K>(s, row, column, value);
    store_either<T, L, K>(s, row, column,
                          tile_map<A>(value, [&](Vec<A, L> v) { return v / (A)count; }));
  }
};

}  // namespace jax_index::JI_TARGET
