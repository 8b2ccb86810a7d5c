// SPDX-License-Identifier: Apache-2.0
// convert: out[i] = x[i] in another dtype, rounded once to nearest even; subnormals are kept. Used
// where operands are promoted, since XLA's own conversion may flush them. Complex to real drops the
// imaginary part (the adjoint of real to complex).
#pragma once

#include "core/types.h"

namespace jax_index {

enum class Format : i32 { kUnsigned, kSigned, kF16, kBF16, kF32, kF64, kMini };

struct ConvertType {
  Format format = Format::kF32;
  i32 bytes = 4;   // of the real part
  i32 parts = 1;   // 2: complex
  MiniFloat mini;  // kMini only
};

struct ConvertArgs {
  const void* x = nullptr;  // [count]
  void* out = nullptr;      // [count]
  i64 count = 0;
  ConvertType from;
  ConvertType to;
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

// Holds any element exactly: integers as they are, floats as double.
struct Number {
  bool integer;
  bool negative;  // integer below zero: the bits are two's complement
  u64 bits;
  double real;
};

JI_HD u64 load_bits(const u8* at, i32 bytes) {
  u64 bits = 0;
  for (i32 k = 0; k < bytes; ++k) bits |= (u64)at[k] << (8 * k);
  return bits;
}
JI_HD void store_bits(u8* at, i32 bytes, u64 bits) {
  for (i32 k = 0; k < bytes; ++k) at[k] = (u8)(bits >> (8 * k));
}

JI_HD Number load_number(const u8* at, const ConvertType& t) {
  const u64 raw = load_bits(at, t.bytes);
  const MiniFloat& mini = t.mini;
  switch (t.format) {
    case Format::kUnsigned:
      return {true, false, raw, 0.0};
    case Format::kSigned: {
      const i32 unused = 64 - 8 * t.bytes;
      const i64 value = (i64)(raw << unused) >> unused;
      return {true, value < 0, (u64)value, 0.0};
    }
    case Format::kF16:
      return {false, false, 0, Codec<F16>::decode<1>((u16)raw, mini)};
    case Format::kBF16:
      return {false, false, 0, Codec<BF16>::decode<1>((u16)raw, mini)};
    case Format::kF32:
      return {false, false, 0, bit_cast<float>((u32)raw)};
    case Format::kF64:
      return {false, false, 0, bit_cast<double>(raw)};
    case Format::kMini:
      return {false, false, 0, decode_mini((u32)raw, mini)};
  }
  return {};
}

// To 24 bits and more exponent than any narrower float has, with the lost bits marked in the last
// place (round to odd): rounding the result once more to a narrower float is then correct.
JI_HD float to_odd_float(const Number& n) {
  if (n.integer) {
    u64 magnitude = n.negative ? 0 - n.bits : n.bits;
    i32 shift = 0;
    bool lost = false;
    while (magnitude >> 24) {
      lost = lost || (magnitude & 1u);
      magnitude >>= 1;
      ++shift;
    }
    const float scale = bit_cast<float>((u32)(127 + shift) << 23);
    const float value = (float)(u32)(lost ? magnitude | 1u : magnitude) * scale;
    return n.negative ? -value : value;
  }
  const float nearest = (float)n.real;
  if ((double)nearest == n.real || n.real != n.real) return nearest;
  const u32 word = bit_cast<u32>(nearest);
  if (word & 1u) return nearest;
  // Even and inexact: the odd neighbour on the other side of the value.
  const bool away =
      (nearest < 0 ? -(double)nearest : (double)nearest) > (n.real < 0 ? -n.real : n.real);
  return bit_cast<float>(away ? word - 1u : word + 1u);
}

JI_HD double to_double(const Number& n) {
  if (!n.integer) return n.real;
  return n.negative ? (double)(i64)n.bits : (double)n.bits;
}
JI_HD float to_float(const Number& n) {
  if (!n.integer) return (float)n.real;
  return n.negative ? (float)(i64)n.bits : (float)n.bits;
}

JI_HD void store_number(u8* at, const ConvertType& t, const Number& n) {
  const MiniFloat& mini = t.mini;
  u64 bits = 0;
  switch (t.format) {
    case Format::kUnsigned:
    case Format::kSigned:
      bits = n.bits;  // promotion never turns a float into an integer
      break;
    case Format::kF16:
      bits = Codec<F16>::encode<1>(to_odd_float(n), mini);
      break;
    case Format::kBF16:
      bits = Codec<BF16>::encode<1>(to_odd_float(n), mini);
      break;
    case Format::kF32:
      bits = bit_cast<u32>(to_float(n));
      break;
    case Format::kF64:
      bits = bit_cast<u64>(to_double(n));
      break;
    case Format::kMini:
      bits = encode_mini(to_odd_float(n), mini);
      break;
  }
  store_bits(at, t.bytes, bits);
}

JI_HD void convert_one(const ConvertArgs& a, i64 i) {
  const u8* from = static_cast<const u8*>(a.x) + i * a.from.bytes * a.from.parts;
  u8* to = static_cast<u8*>(a.out) + i * a.to.bytes * a.to.parts;
  for (i32 part = 0; part < a.to.parts; ++part) {
    const Number zero = {true, false, 0, 0.0};
    store_number(to + part * a.to.bytes, a.to,
                 part < a.from.parts ? load_number(from + part * a.from.bytes, a.from) : zero);
  }
}

}  // namespace jax_index::JI_TARGET
