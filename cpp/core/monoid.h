// SPDX-License-Identifier: Apache-2.0
// The only place where two values of a reduction meet.
#pragma once

#include "core/vec.h"

namespace jax_index::JI_TARGET {

// Integers are passed as unsigned, so that overflow wraps as NumPy's does.
struct Sum {
  template <class T>
  static JI_HD T identity() {
    return T(0);
  }
  template <class V>
  static JI_HD V combine(V a, V b) {
    return V(a + b);
  }
};

struct Product {
  template <class T>
  static JI_HD T identity() {
    return T(1);
  }
  template <class V>
  static JI_HD V combine(V a, V b) {
    return V(a * b);
  }
};

// Of unsigned integers; Key makes them of every other dtype.
struct Largest {
  template <class T>
  static JI_HD T identity() {
    return T(0);
  }
  template <class V>
  static JI_HD V combine(V a, V b) {
    return a > b ? a : b;
  }
};

template <class Monoid, class Tile>
struct TileFold;

template <class Monoid, class T, int L, int K>
struct TileFold<Monoid, Tile<T, L, K>> {
  static JI_HD Tile<T, L, K> identity() {
    Tile<T, L, K> out;
    tile_fill(out, [](int) { return Vec<T, L>{} + Monoid::template identity<T>(); });
    return out;
  }
  static JI_HD Tile<T, L, K> combine(const Tile<T, L, K>& a, const Tile<T, L, K>& b) {
    return tile_zip(a, b, [](Vec<T, L> x, Vec<T, L> y) { return Monoid::combine(x, y); });
  }
};

}  // namespace jax_index::JI_TARGET
