// SPDX-License-Identifier: Apache-2.0
// fma, exp and log with the same bits on every machine: one text for a CUDA thread and a SIMD
// register, every contraction written out. exp and log are within one unit in the last place.
// Complex numbers are pairs of neighbouring reals.
//
// Method: exp(x) = 2^n exp(r) with r = x - n ln 2 in [-ln 2 / 2, ln 2 / 2] and the series of exp;
// log(2^e f) with f in [sqrt(1/2), sqrt(2)): log f = 2 atanh((f - 1) / (f + 1)) by its series.
#pragma once

#include <utility>

#include "core/vec.h"

#if defined(__FMA__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif

namespace jax_index::JI_TARGET {

// a * b + c, rounded once. Without the instruction it is right but slow.
template <class T, int L>
JI_HD Vec<T, L> fma(Vec<T, L> a, Vec<T, L> b, Vec<T, L> c) {
  if constexpr (!(T(0.5) > T(0))) {
    return a * b + c;  // integers wrap
  } else if constexpr (L == 1) {
    if constexpr (sizeof(T) == 4) {
      return __builtin_fmaf(a, b, c);
    } else {
      return __builtin_fma(a, b, c);
    }
  } else {
#if !defined(__CUDACC__)
#if defined(__AVX512F__)
    if constexpr (L * sizeof(T) == 64) {
      if constexpr (sizeof(T) == 4) {
        return (Vec<T, L>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
      } else {
        return (Vec<T, L>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
      }
    }
#endif
#if defined(__FMA__)
    if constexpr (L * sizeof(T) == 32) {
      if constexpr (sizeof(T) == 4) {
        return (Vec<T, L>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
      } else {
        return (Vec<T, L>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
      }
    } else if constexpr (L * sizeof(T) == 16) {
      if constexpr (sizeof(T) == 4) {
        return (Vec<T, L>)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
      } else {
        return (Vec<T, L>)_mm_fmadd_pd((__m128d)a, (__m128d)b, (__m128d)c);
      }
    }
#endif
    Vec<T, L> out{};
    for (int i = 0; i < L; ++i) out[i] = fma<T, 1>(a[i], b[i], c[i]);
    return out;
#else
    return a * b + c;  // never: a CUDA thread owns scalars
#endif
  }
}

// A product of complex numbers that is added to a sum:
// re = fma(-wi, xi, fma(wr, xr, re)), im = fma(wi, xr, fma(wr, xi, im)).

namespace detail {

// The lanes of each pair exchanged, or one of them in the place of both.
enum class Pairs { kSwapped, kReal, kImaginary };

constexpr int lane_of(Pairs which, int lane) {
  return which == Pairs::kSwapped ? lane ^ 1 : which == Pairs::kReal ? lane & ~1 : lane | 1;
}

#if !defined(__CUDACC__)
template <class A, int L, Pairs which, int... Lanes>
JI_HD Vec<A, L> pick_lanes(Vec<A, L> v, std::integer_sequence<int, Lanes...>) {
  return Vec<A, L>{v[lane_of(which, Lanes)]...};
}
#endif

// A factor for each lane of pairs: its real part, and its imaginary part with the sign of the lane.
template <class A, int L>
struct ComplexFactor {
  Vec<A, L> re, im;

#if !defined(__CUDACC__)
  static constexpr auto kLanes = std::make_integer_sequence<int, L>{};
  static JI_HD Vec<A, L> sign() {
    Vec<A, L> out{};
    for (int i = 0; i < L; ++i) out[i] = i % 2 ? A(1) : A(-1);
    return out;
  }
  // Every pair has the same one. Subtracting 0 keeps -0.
  JI_HD ComplexFactor(A real, A imaginary)
      : re(real - Vec<A, L>{}), im(sign() * (imaginary - Vec<A, L>{})) {}
  // Each its own one.
  JI_HD explicit ComplexFactor(Vec<A, L> w)
      : re(pick_lanes<A, L, Pairs::kReal>(w, kLanes)),
        im(sign() * pick_lanes<A, L, Pairs::kImaginary>(w, kLanes)) {}
  JI_HD Vec<A, L> times(Vec<A, L> x, Vec<A, L> sum) const {
    const Vec<A, L> swapped = pick_lanes<A, L, Pairs::kSwapped>(x, kLanes);
    return fma<A, L>(im, swapped, fma<A, L>(re, x, sum));
  }
#endif
};

// Scalars: a number is a part of the tile and the next one.
template <class A, int K>
JI_HD void complex_pair(A real, A imaginary, const Tile<A, 1, K>& x, const Tile<A, 1, K>& sum,
                        Tile<A, 1, K>& out) {
  const A re = x.head;
  const A im = x.tail.head;
  out.head = fma<A, 1>(-imaginary, im, fma<A, 1>(real, re, sum.head));
  out.tail.head = fma<A, 1>(imaginary, re, fma<A, 1>(real, im, sum.tail.head));
}

}  // namespace detail

// sum + w x, w one number. Half a number, which no worker has, stays as it is.
template <class A, int L, int K>
JI_HD Tile<A, L, K> complex_fma(A real, A imaginary, const Tile<A, L, K>& x,
                                const Tile<A, L, K>& sum) {
  Tile<A, L, K> out = sum;
  if constexpr (L > 1) {
    const detail::ComplexFactor<A, L> w(real, imaginary);
    out = tile_zip(x, sum, [&](Vec<A, L> v, Vec<A, L> total) { return w.times(v, total); });
  } else if constexpr (K > 1) {
    detail::complex_pair<A, K>(real, imaginary, x, sum, out);
    if constexpr (K > 2)
      out.tail.tail = complex_fma<A, L, K - 2>(real, imaginary, x.tail.tail, sum.tail.tail);
  }
  return out;
}

// sum + w x, number by number.
template <class A, int L, int K>
JI_HD Tile<A, L, K> complex_fma(const Tile<A, L, K>& w, const Tile<A, L, K>& x,
                                const Tile<A, L, K>& sum) {
  Tile<A, L, K> out = sum;
  if constexpr (L > 1) {
    out = tile_zip3(w, x, sum, [](Vec<A, L> factor, Vec<A, L> v, Vec<A, L> total) {
      return detail::ComplexFactor<A, L>(factor).times(v, total);
    });
  } else if constexpr (K > 1) {
    detail::complex_pair<A, K>(w.head, w.tail.head, x, sum, out);
    if constexpr (K > 2)
      out.tail.tail = complex_fma<A, L, K - 2>(w.tail.tail, x.tail.tail, sum.tail.tail);
  }
  return out;
}

namespace detail {

// The layout of a float and the constants of its series.
template <class T>
struct Real;

template <>
struct Real<float> {
  using U = u32;
  static constexpr int kMantissa = 23;
  static constexpr u32 kBias = 127;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to whole numbers
  static constexpr float kLow = -104.0f, kHigh = 89.0f;  // exp is 0 below, inf above
  static constexpr float kLog2e = 0x1.715476p+0f;
  static constexpr float kLn2High = 0x1.62e400p-1f, kLn2Low = 0x1.7f7d1cp-20f;
  static constexpr int kExpTerms = 7, kLogTerms = 5;
};

template <>
struct Real<double> {
  using U = u64;
  static constexpr int kMantissa = 52;
  static constexpr u64 kBias = 1023;
  static constexpr double kRound = 6755399441055744.0;
  static constexpr double kLow = -746.0, kHigh = 710.0;
  static constexpr double kLog2e = 0x1.71547652b82fep+0;
  static constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  static constexpr int kExpTerms = 13, kLogTerms = 11;
};

// 1 / k!
template <class T>
constexpr T inverse_factorial(int k) {
  double out = 1;
  for (int i = 2; i <= k; ++i) out *= i;
  return T(1 / out);
}

// c(0) + x c(1) + ... + x^n c(n), innermost first.
template <int K, int N, class T, int L, class Coefficient>
JI_HD Vec<T, L> horner(Vec<T, L> x, Coefficient c) {
  if constexpr (K == N) {
    return Vec<T, L>{} + c(K);
  } else {
    return fma<T, L>(horner<K + 1, N, T, L>(x, c), x, Vec<T, L>{} + c(K));
  }
}

// 2^n for whole n of the normal range.
template <class T, int L, class N>
JI_HD Vec<T, L> power_of_two(N n) {
  using R = Real<T>;
  return vec_cast<Vec<T, L>>((n + R::kBias) << R::kMantissa);
}

}  // namespace detail

template <class T, int L>
JI_HD Vec<T, L> exp_of(Vec<T, L> x) {
  using R = detail::Real<T>;
  using U = Vec<typename R::U, L>;
  using V = Vec<T, L>;
  V bounded = select<T, L>(x < V{} + R::kLow, V{} + R::kLow, x);
  bounded = select<T, L>(bounded > V{} + R::kHigh, V{} + R::kHigh, bounded);
  const V shifted = fma<T, L>(bounded, V{} + R::kLog2e, V{} + R::kRound);
  const V n = shifted - R::kRound;
  V r = fma<T, L>(n, V{} - R::kLn2High, bounded);
  r = fma<T, L>(n, V{} - R::kLn2Low, r);
  // exp(r) = 1 + (r + r^2 (1/2! + r/3! + ...)): what is added to 1 is small, so its error is too.
  const V series = detail::horner<0, R::kExpTerms - 1, T, L>(
      r, [](int k) { return detail::inverse_factorial<T>(k + 2); });
  const V value = fma<T, L>(r * r, series, r) + T(1);
  // 2^n in two steps, each in the normal range; the second one alone may round.
  const U whole = vec_cast<U>(shifted) - bit_cast<typename R::U>(R::kRound);
  const U half = arithmetic_half<typename R::U, L>(whole);
  const V scaled =
      value * detail::power_of_two<T, L>(half) * detail::power_of_two<T, L>(whole - half);
  return select<T, L>(x != x, x, scaled);
}

// exp(x - m) for m the largest x of a row; 0 where that is -inf, as in a row with nothing to weigh.
template <class T, int L>
JI_HD Vec<T, L> exp_below(Vec<T, L> x, Vec<T, L> m) {
  using R = detail::Real<T>;
  using V = Vec<T, L>;
  const T inf = bit_cast<T>(typename R::U((2 * R::kBias + 1) << R::kMantissa));
  return select<T, L>(m == V{} - inf, V{}, exp_of<T, L>(x - m));
}

template <class T, int L>
JI_HD Vec<T, L> log_of(Vec<T, L> x) {
  using R = detail::Real<T>;
  using Bits = typename R::U;
  using U = Vec<Bits, L>;
  using V = Vec<T, L>;
  constexpr Bits kOne = Bits(1);
  constexpr Bits kInf = (2 * R::kBias + 1) << R::kMantissa;
  const V smallest = V{} + bit_cast<T>(kOne << R::kMantissa);
  // A subnormal is scaled into the normal range.
  const auto subnormal = x < smallest;
  const V normal =
      select<T, L>(subnormal, x * bit_cast<T>((R::kBias + R::kMantissa + 1) << R::kMantissa), x);
  const U word = vec_cast<U>(normal);
  // The exponent is counted from sqrt(1/2), so that f lies around 1.
  constexpr Bits kRootHalf = sizeof(T) == 4 ? (Bits)0x3f3504f3u : (Bits)0x3fe6a09e667f3bcdull;
  const U above = word - kRootHalf;
  const U exponent = arithmetic_shift<Bits, L>(above, R::kMantissa);
  const V f = vec_cast<V>(word - (exponent << R::kMantissa));
  V e = signed_to_real<T, Bits, L>(exponent);
  e = select<T, L>(subnormal, e - T(R::kMantissa + 1), e);
  const V t = f - T(1);
  const V s = t / (t + T(2));
  const V z = s * s;
  // log f = t - t^2/2 + s (t^2/2 + z (2/3 + 2/5 z + ...))
  const V series =
      z * detail::horner<0, R::kLogTerms - 1, T, L>(z, [](int k) { return T(2.0 / (2 * k + 3)); });
  const V half_square = t * t * T(0.5);
  const V small = fma<T, L>(s, half_square + series, e * R::kLn2Low);
  const V value = fma<T, L>(e, V{} + R::kLn2High, t - (half_square - small));
  const V inf = V{} + bit_cast<T>(kInf);
  const V nan = V{} + bit_cast<T>(kInf | (kOne << (R::kMantissa - 1)));
  V out = select<T, L>(x == inf, inf, value);
  out = select<T, L>(x == V{}, -inf, out);
  out = select<T, L>(x < V{}, nan, out);
  return select<T, L>(x != x, x, out);
}

// x is r: equal, zeros of either sign too, or both NaN.
template <class A, int L>
JI_HD Vec<A, L> tie(Vec<A, L> x, Vec<A, L> r, Vec<A, L> yes) {
  const Vec<A, L> no{};
  return select<A, L>(x == r, yes, select<A, L>(x != x, select<A, L>(r != r, yes, no), no));
}

// leaky_relu, and what it makes of a cotangent.
template <class T, int L>
JI_HD Vec<T, L> leaky_slope(Vec<T, L> x, Vec<T, L> ct, T slope) {
  return select<T, L>(x >= Vec<T, L>{}, ct, ct * slope);
}
template <class T, int L>
JI_HD Vec<T, L> leaky(Vec<T, L> x, T slope) {
  return leaky_slope<T, L>(x, x, slope);
}

template <class T, int L>
JI_HD Vec<T, L> sqrt_of(Vec<T, L> x) {
  return map_lanes<T, L>(x, [](T v) {
    if constexpr (sizeof(T) == 4) {
      return __builtin_sqrtf(v);
    } else {
      return __builtin_sqrt(v);
    }
  });
}

}  // namespace jax_index::JI_TARGET
