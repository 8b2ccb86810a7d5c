// SPDX-License-Identifier: Apache-2.0
// sddmm: out[e, g] = sum over d of x[row of e in x, g, d] y[row of e in y, g, d], the sampled
// product of two dense matrices: the adjoint of spmm with respect to its weights.
//
// The order of a dot: 32 accumulators from +0, a[j] = fma(x, y, a[j]) over the features j, j + 32,
// …; then neighbours are added, (a0 + a1), (a2 + a3), …, five times. A complex feature is a pair of
// elements, and so is its accumulator:
// re = fma(-xi, yi, fma(xr, yr, re)), im = fma(xi, yr, fma(xr, yi, im)).
#pragma once

#include "core/csr.h"
#include "core/math.h"
#include "core/nest.h"
#include "core/row_fold.h"
#include "core/tile_io.h"

namespace jax_index {

struct SddmmArgs {
  enum Array { kX, kY, kOut, kOrder, kXRows, kYRows, kAtt, kArrays };
  const void* x = nullptr;  // [slices, num_x, groups * depth]
  const void* y = nullptr;  // [slices, num_y, groups * depth]
  void* out = nullptr;      // [slices, num_edges, groups]
  // Edges are visited as `order` says (null: one after the other), for the sake of locality.
  const i32* order = nullptr;   // [num_edges]: the edge at each position
  const i32* x_rows = nullptr;  // [num_edges]: by position; null: the edge itself
  const i32* y_rows = nullptr;  // [num_edges]: by edge; null: the edge itself
  i64 num_edges = 0;
  i64 num_x = 0;
  i64 num_y = 0;
  i64 groups = 0;
  i64 depth = 0;    // elements of one dot, two for a complex feature
  i64 x_pitch = 0;  // elements from row to row
  i64 y_pitch = 0;
  i64 out_pitch = 0;
  Nest<kArrays> nest;
  DType dtype = DType::kF32;
  bool out_wide = false;  // stored in the accumulator type
  bool complex = false;   // a feature is an element and the next one, and so is a dot
  // Additive attention: the dot of att and leaky_relu(x + y) instead.
  const void* att = nullptr;  // [slices, groups * depth]
  double slope = 0;
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

constexpr int kDotLanes = 32;

// Which rows an edge joins, or not there: a dropped edge has none and its dot is 0.
struct Pair {
  i64 edge = -1;
  i64 x = -1;
  i64 y = -1;
  JI_HD bool there() const { return x >= 0 && y >= 0; }
};

struct SddmmSlice {
  const SddmmArgs& a;
  i64 slice;

  JI_HD i64 at(int array) const { return offset_of(a.nest, slice, array); }

  JI_HD Pair pair(i64 position) const {
    Pair out;
    if (position >= a.num_edges) return out;
    const i32 edge =
        a.order ? load_index(a.order + at(SddmmArgs::kOrder) + position) : (i32)position;
    const i32 x =
        a.x_rows ? load_index(a.x_rows + at(SddmmArgs::kXRows) + position) : (i32)position;
    if ((u32)edge >= (u32)a.num_edges) return out;
    const i32 y = a.y_rows ? load_index(a.y_rows + at(SddmmArgs::kYRows) + edge) : edge;
    out.edge = edge;
    if ((u32)x < (u32)a.num_x) out.x = x;
    if ((u32)y < (u32)a.num_y) out.y = y;
    return out;
  }
};

// What one feature adds to its accumulator.
template <class A, int L, bool Additive>
JI_HD Vec<A, L> dot_step(Vec<A, L> x, Vec<A, L> y, Vec<A, L> att, A slope, Vec<A, L> sum) {
  if constexpr (Additive) return fma<A, L>(att, leaky<A, L>(x + y, slope), sum);
  return fma<A, L>(x, y, sum);
}

template <class T>
JI_HD void store_dot(const SddmmArgs& a, i64 element, AccOf<T> value) {
  if (a.out_wide) {
    static_cast<AccOf<T>*>(a.out)[element] = value;
  } else {
    static_cast<BitsOf<T>*>(a.out)[element] = Codec<T>::template encode<1>(value, MiniFloat{});
  }
}

}  // namespace jax_index::JI_TARGET
