// SPDX-License-Identifier: Apache-2.0
// Element types: how a stored element becomes an accumulator, and how it is rounded back, once.
//
// Every codec works on integers or on vectors of integers (the compiler's vector types), so that
// one text serves a CUDA thread and a SIMD register. Narrow floats are decoded exactly and encoded
// by integer round-to-nearest-even: no conversion instruction, whose rules for subnormals differ
// from machine to machine.
#pragma once

#include "core/vec.h"

namespace jax_index {

struct F16 {
  u16 bits;
};
struct BF16 {
  u16 bits;
};
// Any float of at most 8 bits; which one is a run-time MiniFloat.
struct F8 {
  u8 bits;
};

// A number of any kind as an unsigned integer that is ordered as the numbers are, so that one
// maximum serves every dtype, and the minimum too. Which kind is a run-time MiniFloat.
template <class U>
struct Key {
  U bits;
};

// The layout of a float of at most 8 bits; or of a Key.
struct MiniFloat {
  enum Special : i32 {
    kIeee,    // all-ones exponent is inf / NaN
    kFn,      // no inf; all ones is NaN
    kFnuz,    // no inf, no -0; the bits of -0 are NaN
    kFinite,  // no inf, no NaN: overflow saturates, NaN becomes -0
    kScale,   // unsigned power of two without zero; 0xff is NaN
    // Keys: of integers, and of IEEE floats with `mantissa_bits`; for a minimum the bias is 1.
    kUnsignedKey,
    kSignedKey,
    kFloatKey,
  };
  i32 exponent_bits = 0;
  i32 mantissa_bits = 0;
  i32 bias = 0;
  i32 special = kIeee;
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

JI_HD float decode_mini(u32 bits, const MiniFloat& f) {
  if (f.special == MiniFloat::kScale) {
    // 2^-127 is the one value below float32's normal range.
    const u32 out = bits == 0xffu ? 0x7fc00000u : (bits == 0 ? 0x00400000u : bits << 23);
    return bit_cast<float>(out);
  }
  const i32 width = 1 + f.exponent_bits + f.mantissa_bits;
  const u32 sign = (bits >> (width - 1)) & 1u;
  const u32 magnitude = bits & ((1u << (width - 1)) - 1u);
  const u32 exponent = magnitude >> f.mantissa_bits;
  const u32 mantissa = magnitude & ((1u << f.mantissa_bits) - 1u);
  const u32 top = (1u << f.exponent_bits) - 1u;
  const u32 nan = 0x7fc00000u;
  if (f.special == MiniFloat::kFnuz && sign && magnitude == 0) return bit_cast<float>(nan);
  if (f.special == MiniFloat::kFn && magnitude == (1u << (width - 1)) - 1u)
    return bit_cast<float>(nan);
  if (f.special == MiniFloat::kIeee && exponent == top)
    return bit_cast<float>(mantissa ? nan : (sign << 31 | 0x7f800000u));
  // The hidden bit and the scale are put together from exact powers of two.
  const float scale =
      bit_cast<float>((u32)(127 + (exponent ? (i32)exponent : 1) - f.bias - f.mantissa_bits) << 23);
  const float value = (float)(i32)(exponent ? mantissa | (1u << f.mantissa_bits) : mantissa);
  return bit_cast<float>(bit_cast<u32>(value * scale) | sign << 31);
}

// Shifts right by `shift` (at most 31) and rounds to nearest, ties to even.
JI_HD u32 round_shift(u32 value, i32 shift) {
  if (shift == 0) return value;
  const u32 half = 1u << (shift - 1);
  return (value + half - 1u + ((value >> shift) & 1u)) >> shift;
}

JI_HD u32 encode_mini(float value, const MiniFloat& f) {
  const u32 word = bit_cast<u32>(value);
  const u32 sign = word >> 31;
  const u32 magnitude = word & 0x7fffffffu;
  if (f.special == MiniFloat::kScale) {
    // No sign and no zero: what is not positive and finite is NaN. What is less than 2^-127 becomes
    // that, and half way between two powers goes up, as XLA and ml_dtypes have it.
    if (sign || magnitude == 0 || magnitude >= 0x7f800000u) return 0xffu;
    if (magnitude < 0x00800000u) return magnitude >= 0x00600000u ? 1u : 0u;
    return (magnitude + 0x00400000u) >> 23;
  }
  const i32 width = 1 + f.exponent_bits + f.mantissa_bits;
  const u32 sign_bit = 1u << (width - 1);
  const u32 all = sign_bit - 1u;
  u32 nan = sign << (width - 1);
  u32 largest = all;
  u32 overflow = 0;
  if (f.special == MiniFloat::kIeee) {
    const u32 inf = ((1u << f.exponent_bits) - 1u) << f.mantissa_bits;
    nan |= inf | (1u << (f.mantissa_bits - 1));
    largest = inf - 1u;
    overflow = (sign << (width - 1)) | inf;
  } else if (f.special == MiniFloat::kFn) {
    nan |= all;
    largest = all - 1u;
    overflow = nan;
  } else if (f.special == MiniFloat::kFnuz) {
    nan = sign_bit;
    overflow = nan;
  } else {
    nan = sign_bit;
    overflow = (sign << (width - 1)) | all;
  }
  if (magnitude > 0x7f800000u) return nan;
  if (magnitude == 0x7f800000u) return overflow;
  const i32 exponent = (i32)(magnitude >> 23) - 127 + f.bias;
  const i32 drop = 23 - f.mantissa_bits;
  u32 out = 0;
  if (exponent >= 1) {
    const u32 rebased = magnitude - ((u32)(127 - f.bias) << 23);
    out = round_shift(rebased, drop);
    if (exponent > (1 << f.exponent_bits) || out > largest) return overflow;
  } else {
    const i32 shift = drop + 1 - exponent;
    if ((magnitude >> 23) != 0 && shift <= 25)
      out = round_shift((magnitude & 0x7fffffu) | 0x800000u, shift);
  }
  if (f.special == MiniFloat::kFnuz && out == 0) return 0u;
  return out | sign << (width - 1);
}

// Codec<T>: Bits is the stored integer, Acc the accumulator; decode / encode map L lanes at once.
template <class T>
struct Codec {
  using Bits = T;
  using Acc = T;
  template <int L>
  static JI_HD Vec<Acc, L> decode(Vec<Bits, L> bits, const MiniFloat&) {
    return bits;
  }
  template <int L>
  static JI_HD Vec<Bits, L> encode(Vec<Acc, L> value, const MiniFloat&) {
    return value;
  }
};

template <>
struct Codec<BF16> {
  using Bits = u16;
  using Acc = float;
  template <int L>
  static JI_HD Vec<float, L> decode(Vec<u16, L> bits, const MiniFloat&) {
    return vec_cast<Vec<float, L>>(vec_convert<u32, L>(bits) << 16);
  }
  template <int L>
  static JI_HD Vec<u16, L> encode(Vec<float, L> value, const MiniFloat&) {
    using U = Vec<u32, L>;
    const U word = vec_cast<U>(value);
    const U rounded = (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
    const U quiet = (word >> 16) | 0x40u;
    return vec_convert<u16, L>(
        select<u32, L>((word & 0x7fffffffu) > 0x7f800000u + U{}, quiet, rounded));
  }
};

template <>
struct Codec<F16> {
  using Bits = u16;
  using Acc = float;
  template <int L>
  static JI_HD Vec<float, L> decode(Vec<u16, L> bits, const MiniFloat&) {
    using U = Vec<u32, L>;
    const U word = vec_convert<u32, L>(bits);
    const U sign = (word & 0x8000u) << 16;
    const U magnitude = (word & 0x7fffu) << 13;
    // 2^112 rebases the exponent and normalises subnormals, exactly.
    const U scaled = vec_cast<U>(vec_cast<Vec<float, L>>(magnitude) * bit_cast<float>(0x77800000u));
    const U special = magnitude | 0x7f800000u;
    return vec_cast<Vec<float, L>>(sign |
                                   select<u32, L>(magnitude >= 0x0f800000u + U{}, special, scaled));
  }
  template <int L>
  static JI_HD Vec<u16, L> encode(Vec<float, L> value, const MiniFloat&) {
    using U = Vec<u32, L>;
    const U word = vec_cast<U>(value);
    const U sign = (word >> 16) & 0x8000u;
    const U magnitude = word & 0x7fffffffu;
    const U normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Adding 0.5 leaves the subnormal result, rounded to nearest even, in the low bits.
    const U subnormal =
        vec_cast<U>(vec_cast<Vec<float, L>>(magnitude) + bit_cast<float>(0x3f000000u)) -
        0x3f000000u;
    U out = select<u32, L>(magnitude < 0x38800000u + U{}, subnormal, normal);
    out = select<u32, L>(magnitude >= 0x47800000u + U{}, 0x7c00u + U{}, out);
    out = select<u32, L>(magnitude > 0x7f800000u + U{}, 0x7e00u + U{}, out);
    return vec_convert<u16, L>(out | sign);
  }
};

template <>
struct Codec<F8> {
  using Bits = u8;
  using Acc = float;
  template <int L>
  static JI_HD Vec<float, L> decode(Vec<u8, L> bits, const MiniFloat& format) {
    return map_lanes<float, L>(bits, [&](u8 b) { return decode_mini(b, format); });
  }
  template <int L>
  static JI_HD Vec<u8, L> encode(Vec<float, L> value, const MiniFloat& format) {
    return map_lanes<u8, L>(value, [&](float v) { return (u8)encode_mini(v, format); });
  }
};

// Of equal zeros the positive one is larger. NaN has the largest key, in a minimum too, so it wins.
// The smallest key belongs to no number but an integer's least: it is the identity, -inf or inf.
template <class U>
struct Codec<Key<U>> {
  using Bits = U;
  using Acc = U;
  static constexpr U kTop = U(U(1) << (8 * sizeof(U) - 1));
  static JI_HD U inf(const MiniFloat& f) {
    return U(U(kTop - 1) >> f.mantissa_bits << f.mantissa_bits);
  }
  template <int L>
  static JI_HD Vec<U, L> decode(Vec<U, L> bits, const MiniFloat& f) {
    using V = Vec<U, L>;
    V key = bits;
    if (f.special == MiniFloat::kSignedKey) key = V(bits ^ (V{} + kTop));
    if (f.special == MiniFloat::kFloatKey)
      key = select<U, L>((bits & (V{} + kTop)) != V{}, V(~bits), V(bits | (V{} + kTop)));
    if (f.bias) key = V(~key);
    if (f.special == MiniFloat::kFloatKey) {
      const V magnitude = V(bits & (V{} + U(kTop - 1)));
      key = select<U, L>(magnitude > V{} + inf(f), V(~V{}), key);
    }
    return key;
  }
  template <int L>
  static JI_HD Vec<U, L> encode(Vec<U, L> key, const MiniFloat& f) {
    using V = Vec<U, L>;
    const V plain = f.bias ? V(~key) : key;
    if (f.special == MiniFloat::kUnsignedKey) return plain;
    if (f.special == MiniFloat::kSignedKey) return V(plain ^ (V{} + kTop));
    V bits = select<U, L>((plain & (V{} + kTop)) != V{}, V(plain ^ (V{} + kTop)), V(~plain));
    const U infinite = inf(f);
    const U nan = U(infinite | U(U(1) << (f.mantissa_bits - 1)));
    const U none = U(f.bias ? infinite : infinite | kTop);
    bits = select<U, L>(key == V(~V{}), V{} + nan, bits);
    return select<U, L>(key == V{}, V{} + none, bits);
  }
};

template <class T>
using AccOf = typename Codec<T>::Acc;
template <class T>
using BitsOf = typename Codec<T>::Bits;

}  // namespace jax_index::JI_TARGET
