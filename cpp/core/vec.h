// SPDX-License-Identifier: Apache-2.0
// Vec<T, L>: L lanes that are computed on at once. On the host it is the compiler's vector type;
// on the GPU, where the lanes of a warp are the vector, L is 1 and Vec is the scalar itself.
#pragma once

#include <cstring>

#include "core/hd.h"

namespace jax_index::JI_TARGET {

template <class To, class From>
JI_HD To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

namespace detail {
template <class T, int L>
struct VecType {
#if defined(__CUDACC__)
  static_assert(L == 1, "a CUDA thread owns scalars");
  using type = T;
#else
  typedef T type __attribute__((vector_size(L * sizeof(T))));
#endif
};
template <class T>
struct VecType<T, 1> {
  using type = T;
};
}  // namespace detail

template <class T, int L>
using Vec = typename detail::VecType<T, L>::type;

template <class To, class From>
JI_HD To vec_cast(From from) {
  return bit_cast<To>(from);
}

// Converts every lane between integer widths (zero-extending: all sources are unsigned).
template <class To, int L, class From>
JI_HD Vec<To, L> vec_convert(From from) {
#if defined(__CUDACC__)
  return (To)from;
#else
  if constexpr (L == 1) {
    return (To)from;
  } else {
    return __builtin_convertvector(from, Vec<To, L>);
  }
#endif
}

template <class T, int L, class Mask>
JI_HD Vec<T, L> select(Mask mask, Vec<T, L> yes, Vec<T, L> no) {
  return mask ? yes : no;
}

template <class To, int L, class From, class Fn>
JI_HD Vec<To, L> map_lanes(From from, Fn fn) {
#if defined(__CUDACC__)
  return fn(from);
#else
  if constexpr (L == 1) {
    return fn(from);
  } else {
    Vec<To, L> out{};
    for (int i = 0; i < L; ++i) out[i] = fn(from[i]);
    return out;
  }
#endif
}

// Lanes hold two's complement numbers in an unsigned type.
template <class U, int L>
JI_HD Vec<U, L> arithmetic_shift(Vec<U, L> value, int by) {
  const Vec<U, L> sign = value >> (8 * (int)sizeof(U) - 1);
  return (value >> by) | ((Vec<U, L>{} - sign) << (8 * (int)sizeof(U) - by));
}
template <class U, int L>
JI_HD Vec<U, L> arithmetic_half(Vec<U, L> value) {
  return arithmetic_shift<U, L>(value, 1);
}
// Exact where the number has fewer bits than T's mantissa.
template <class T, class U, int L>
JI_HD Vec<T, L> signed_to_real(Vec<U, L> value) {
  return map_lanes<T, L>(value,
                         [](U v) { return v >> (8 * sizeof(U) - 1) ? -(T)(U)(0 - v) : (T)v; });
}

// Tile<T, L, K>: K vectors of L lanes: the neighbouring features of one row that one worker owns.
// It nests instead of holding an array, so that every part stays in a register.
template <class T, int L, int K>
struct Tile {
  Vec<T, L> head;
  Tile<T, L, K - 1> tail;
};
template <class T, int L>
struct Tile<T, L, 1> {
  Vec<T, L> head;
};

template <class T, int L, int K, class Fn>
JI_HD void tile_fill(Tile<T, L, K>& tile, Fn fn, int first = 0) {
  tile.head = fn(first);
  if constexpr (K > 1) tile_fill(tile.tail, fn, first + 1);
}

// fn(part of a, part of b), part by part.
template <class T, int L, int K, class Fn>
JI_HD Tile<T, L, K> tile_zip(const Tile<T, L, K>& a, const Tile<T, L, K>& b, Fn fn) {
  Tile<T, L, K> out;
  out.head = fn(a.head, b.head);
  if constexpr (K > 1) out.tail = tile_zip(a.tail, b.tail, fn);
  return out;
}

template <class T, int L, int K, class Fn>
JI_HD Tile<T, L, K> tile_zip3(const Tile<T, L, K>& a, const Tile<T, L, K>& b,
                              const Tile<T, L, K>& c, Fn fn) {
  Tile<T, L, K> out;
  out.head = fn(a.head, b.head, c.head);
  if constexpr (K > 1) out.tail = tile_zip3(a.tail, b.tail, c.tail, fn);
  return out;
}

template <class To, class T, int L, int K, class Fn>
JI_HD Tile<To, L, K> tile_map(const Tile<T, L, K>& tile, Fn fn) {
  Tile<To, L, K> out;
  out.head = fn(tile.head);
  if constexpr (K > 1) out.tail = tile_map<To>(tile.tail, fn);
  return out;
}

template <class T, int L, int K, class Fn>
JI_HD void tile_each(const Tile<T, L, K>& tile, Fn fn, int first = 0) {
  fn(first, tile.head);
  if constexpr (K > 1) tile_each(tile.tail, fn, first + 1);
}

}  // namespace jax_index::JI_TARGET
