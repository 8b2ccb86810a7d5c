// SPDX-License-Identifier: Apache-2.0
// Tiles to and from memory. On the GPU one access of up to 16 bytes moves the whole tile of a
// thread; on the host each part is one register.
#pragma once

#include "core/types.h"

namespace jax_index::JI_TARGET {

#if defined(__CUDACC__)
namespace detail {
template <int Bytes>
struct Word;
template <>
struct Word<16> {
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = u32;
};
template <>
struct Word<2> {
  using type = u16;
};
template <>
struct Word<1> {
  using type = u8;
};
}  // namespace detail

template <int Bytes>
using WordOf = typename detail::Word<Bytes>::type;

// A read-only load, a load of what is read once, and a store of what is not read again.
template <class W>
__device__ __forceinline__ W load_word(const void* at) {
  return __ldg(static_cast<const W*>(at));
}
template <class W>
__device__ __forceinline__ W load_once(const void* at) {
  return __ldcs(static_cast<const W*>(at));
}
template <class W>
__device__ __forceinline__ void store_word(void* at, W word) {
  __stcs(static_cast<W*>(at), word);
}
#endif

// A tile as it is stored, and its two ends.
#if defined(__CUDACC__)
template <class T, int L, int K>
using RawTile = WordOf<K * sizeof(BitsOf<T>)>;
#else
template <class T, int L, int K>
using RawTile = Tile<BitsOf<T>, L, K>;
#endif

template <class T, int L, int K>
JI_HD RawTile<T, L, K> load_raw(const BitsOf<T>* at) {
#if defined(__CUDA_ARCH__)
  return load_word<RawTile<T, L, K>>(at);
#else
  RawTile<T, L, K> raw;
#if !defined(__CUDACC__)
  tile_fill(raw, [&](int k) {
    Vec<BitsOf<T>, L> bits;
    memcpy(&bits, at + k * L, sizeof(bits));
    return bits;
  });
#endif
  return raw;
#endif
}

// What is met once in a fold (an edge), what may be met again (a row of another array), and an
// index.
template <class T, int L, int K>
JI_HD RawTile<T, L, K> load_edge(const BitsOf<T>* at) {
#if defined(__CUDA_ARCH__)
  return load_once<RawTile<T, L, K>>(at);
#else
  return load_raw<T, L, K>(at);
#endif
}
template <class T, int L, int K>
JI_HD RawTile<T, L, K> load_shared(const BitsOf<T>* at) {
  return load_raw<T, L, K>(at);
}
JI_HD i32 load_index(const i32* at) {
#if defined(__CUDA_ARCH__)
  return __ldg(at);
#else
  return *at;
#endif
}

template <class T, int L, int K>
JI_HD Tile<AccOf<T>, L, K> widen(const RawTile<T, L, K>& raw, const MiniFloat& mini) {
#if defined(__CUDACC__)
  Tile<AccOf<T>, L, K> out;
  BitsOf<T> bits[K];
  memcpy(bits, &raw, sizeof(raw));
  tile_fill(out, [&](int k) { return Codec<T>::template decode<1>(bits[k], mini); });
  return out;
#else
  return tile_map<AccOf<T>>(
      raw, [&](Vec<BitsOf<T>, L> bits) { return Codec<T>::template decode<L>(bits, mini); });
#endif
}

template <class T, int L, int K>
JI_HD Tile<AccOf<T>, L, K> load_tile(const BitsOf<T>* at, const MiniFloat& mini) {
  return widen<T, L, K>(load_raw<T, L, K>(at), mini);
}

template <class T, int L, int K>
JI_HD void store_tile(BitsOf<T>* at, const Tile<AccOf<T>, L, K>& tile, const MiniFloat& mini) {
  using Bits = BitsOf<T>;
#if defined(__CUDA_ARCH__)
  Bits bits[K];
  tile_each(tile, [&](int k, AccOf<T> v) { bits[k] = Codec<T>::template encode<1>(v, mini); });
  WordOf<K * sizeof(Bits)> word;
  memcpy(&word, bits, sizeof(word));
  store_word(at, word);
#else
  tile_each(tile, [&](int k, Vec<AccOf<T>, L> v) {
    const Vec<Bits, L> bits = Codec<T>::template encode<L>(v, mini);
    memcpy(at + k * L, &bits, sizeof(bits));
  });
#endif
}

// Accumulators kept between two passes.
template <class A, int L, int K>
JI_HD Tile<A, L, K> load_partial(const A* at) {
  Tile<A, L, K> out;
  tile_fill(out, [&](int k) {
    Vec<A, L> part;
    memcpy(&part, at + k * L, sizeof(part));
    return part;
  });
  return out;
}
template <class A, int L, int K>
JI_HD void store_partial(A* at, const Tile<A, L, K>& tile) {
  tile_each(tile, [&](int k, Vec<A, L> part) { memcpy(at + k * L, &part, sizeof(part)); });
}

}  // namespace jax_index::JI_TARGET
