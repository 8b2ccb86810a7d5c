// SPDX-License-Identifier: Apache-2.0
// Real numbers with an exponent of their own: their product neither overflows nor underflows on its
// way, whatever comes first.
//
// A number is value * 2^exponent with 1 <= |value| < 2. Zeros, infinities and NaNs are counted, up
// to two of each kind, instead of being multiplied: so that one of them can be taken out again.
#pragma once

#include "core/math.h"
#include "core/monoid.h"
#include "core/types.h"

namespace jax_index {

// An element that is read as such a number.
template <class F>
struct Scaled {
  F bits;
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

template <class F, int L>
struct ScaledLanes {
  Vec<F, L> value;
  Vec<typename detail::Real<F>::U, L> word;  // the exponent and, below it, the counts
};

namespace detail {

template <class F, int L>
struct VecType<ScaledLanes<F, 1>, L> {
  using type = ScaledLanes<F, L>;
};
template <class F>
struct VecType<ScaledLanes<F, 1>, 1> {
  using type = ScaledLanes<F, 1>;
};

// The word: two bits for each kind of factor that is counted, and the exponent above them.
template <class F>
struct ScaledWord {
  using U = typename Real<F>::U;
  static constexpr int kShift = 6;
  static constexpr U kZero = 1, kInf = 4, kNan = 16;
  static constexpr U kLow = kZero | kInf | kNan;
  static constexpr U kCounts = 3 * kLow;
  // An exponent stays where it is beyond this: the sum of two must fit.
  static constexpr U kMost = ((U(1) << (sizeof(U) == 8 ? 50 : 24)) - 1) << kShift;
  // No number of this exponent comes back into F's range when one factor is taken out.
  static constexpr U kFar = U(4096) << kShift;
  static constexpr U kSign = U(1) << (8 * sizeof(U) - 1);
  static constexpr U kInfinite = (2 * Real<F>::kBias + 1) << Real<F>::kMantissa;
};

// The two's complement number x, or the bound of [-most, most] that it is beyond.
template <class U, int L>
JI_HD Vec<U, L> bounded_word(Vec<U, L> x, U most) {
  using W = Vec<U, L>;
  const W bound =
      select<U, L>((x >> (8 * (int)sizeof(U) - 1)) == W{}, W{} + most, W{} + U(U(0) - most));
  return select<U, L>(x + most > W{} + U(2 * most), bound, x);
}

}  // namespace detail

template <class F, int L>
JI_HD ScaledLanes<F, L> scaled_of(Vec<F, L> x) {
  using R = detail::Real<F>;
  using S = detail::ScaledWord<F>;
  using U = typename R::U;
  using W = Vec<U, L>;
  using V = Vec<F, L>;
  constexpr U kSmallest = U(1) << R::kMantissa;
  constexpr U kMore = R::kMantissa + 1;
  const W sign = vec_cast<W>(x) & (W{} + S::kSign);
  const W magnitude = vec_cast<W>(x) ^ sign;
  // A subnormal is brought into the normal range, exactly.
  const auto subnormal = magnitude < W{} + kSmallest;
  const V normal = select<F, L>(subnormal, x * bit_cast<F>((R::kBias + kMore) << R::kMantissa), x);
  const W bits = vec_cast<W>(normal) ^ sign;
  const W exponent = (bits >> R::kMantissa) - R::kBias - select<U, L>(subnormal, W{} + kMore, W{});
  const W one = W{} + (R::kBias << R::kMantissa);
  const W mantissa = (bits & (W{} + (kSmallest - 1))) | one;
  W count = select<U, L>(magnitude == W{}, W{} + S::kZero, W{});
  count = select<U, L>(magnitude == W{} + S::kInfinite, W{} + S::kInf, count);
  count = select<U, L>(magnitude > W{} + S::kInfinite, W{} + S::kNan, count);
  const auto counted = count != W{};
  ScaledLanes<F, L> out;
  out.value = vec_cast<V>(sign | select<U, L>(counted, one, mantissa));
  out.word = select<U, L>(counted, count, exponent << S::kShift);
  return out;
}

struct ScaledProduct {
  template <class F, int L>
  static JI_HD ScaledLanes<F, L> combine(const ScaledLanes<F, L>& a, const ScaledLanes<F, L>& b) {
    using R = detail::Real<F>;
    using S = detail::ScaledWord<F>;
    using W = Vec<typename R::U, L>;
    // A product in [2, 4) has the next exponent, which is even.
    const W product = vec_cast<W>(Vec<F, L>(a.value * b.value));
    const W carry = ((product >> R::kMantissa) & 1) ^ 1;
    const W mine = a.word & S::kCounts;
    const W other = b.word & S::kCounts;
    const W several = (((mine | other) >> 1) | (mine & other)) & S::kLow;
    const W single = (mine ^ other) & S::kLow & ~several;
    const W exponent = detail::bounded_word<typename R::U, L>(
        (a.word - mine) + (b.word - other) + (carry << S::kShift), S::kMost);
    ScaledLanes<F, L> out;
    out.value = vec_cast<Vec<F, L>>(product - (carry << R::kMantissa));
    out.word = exponent | single | (several << 1);
    return out;
  }
};

template <class T, int L, int K>
struct TileFold<ScaledProduct, Tile<T, L, K>> {
  using V = Vec<T, L>;
  static JI_HD Tile<T, L, K> identity() {
    Tile<T, L, K> out;
    tile_fill(out, [](int) {
      V one{};
      one.value = one.value + 1;
      return one;
    });
    return out;
  }
  static JI_HD Tile<T, L, K> combine(const Tile<T, L, K>& a, const Tile<T, L, K>& b) {
    return tile_zip(a, b, [](const V& x, const V& y) { return ScaledProduct::combine(x, y); });
  }
};

template <class F>
struct Codec<Scaled<F>> {
  using Bits = F;
  using Acc = ScaledLanes<F, 1>;
  template <int L>
  static JI_HD ScaledLanes<F, L> decode(Vec<F, L> x, const MiniFloat&) {
    return scaled_of<F, L>(x);
  }
};

// The word as a whole number, with an exponent that F's range cannot tell from its own.
template <class F, int L>
JI_HD Vec<F, L> scaled_code(const ScaledLanes<F, L>& x) {
  using S = detail::ScaledWord<F>;
  using U = typename S::U;
  const Vec<U, L> counts = x.word & S::kCounts;
  return signed_to_real<F, U, L>(detail::bounded_word<U, L>(x.word - counts, S::kFar) | counts);
}

// The product without its factor x, rounded to F: its value and its code are given.
template <class F, int L>
JI_HD Vec<F, L> product_of_others(Vec<F, L> x, Vec<F, L> value, Vec<F, L> code) {
  using R = detail::Real<F>;
  using S = detail::ScaledWord<F>;
  using U = typename R::U;
  using W = Vec<U, L>;
  using V = Vec<F, L>;
  const ScaledLanes<F, L> own = scaled_of<F, L>(x);
  const W word = map_lanes<U, L>(code, [](F v) {
    if constexpr (sizeof(F) == 4) return (U)(i32)v;
    return (U)(i64)v;
  });
  const W counts = (word & S::kCounts) - (own.word & S::kCounts);
  W exponent = arithmetic_shift<U, L>(word, S::kShift);
  exponent = exponent - arithmetic_shift<U, L>(own.word, S::kShift);
  exponent = detail::bounded_word<U, L>(exponent, U(2 * (R::kBias - 1)));
  const V quotient = value / own.value;
  // 2^exponent in two steps, each in the normal range; the second one alone may round.
  const W half = arithmetic_half<U, L>(exponent);
  V out = quotient * detail::power_of_two<F, L>(half) * detail::power_of_two<F, L>(exponent - half);
  const V infinite = vec_cast<V>((vec_cast<W>(quotient) & S::kSign) | S::kInfinite);
  const V nan = V{} + bit_cast<F>(S::kInfinite | (U(1) << (R::kMantissa - 1)));
  const auto zeros = (counts & (3 * S::kZero)) != W{};
  const V by_zero = select<F, L>(zeros, nan, infinite);
  out = select<F, L>(zeros, V{}, out);
  out = select<F, L>((counts & (3 * S::kInf)) != W{}, by_zero, out);
  return select<F, L>((counts & (3 * S::kNan)) != W{}, nan, out);
}

}  // namespace jax_index::JI_TARGET
