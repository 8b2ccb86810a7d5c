// SPDX-License-Identifier: Apache-2.0
// pointwise: out[e, c] = f(operands at e, c), with the same bits on every machine. An operand has
// rows of edges or, looked up through ids, rows of nodes; it may have one element for a group of
// neighbouring columns. Between the sums of a fused op and of its derivatives stands nothing else.
//
// A function is a struct below and its name in JI_POINTWISE; jax_index/ops/pointwise.py calls it.
#pragma once

#include "core/math.h"
#include "core/nest.h"
#include "core/row_fold.h"
#include "core/scaled.h"

namespace jax_index {

struct PointwiseOperand {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  bool by_row = false;
  i64 pitch = 0;  // elements from row to row
  i64 group = 1;  // neighbouring columns that share an element
};

struct PointwiseArgs {
  static constexpr int kMaxOperands = 8;
  static constexpr int kMaxParameters = 4;
  enum Array { kIn = 0, kIds = kMaxOperands, kOut, kArrays };
  PointwiseOperand in[kMaxOperands];  // by the function's argument; absent ones are null
  const i32* ids = nullptr;           // [num_edges]: the row of an edge; null: the edge itself
  void* out = nullptr;                // [slices, num_edges, width]
  DType out_dtype = DType::kF32;
  i64 num_edges = 0;
  i64 num_rows = 0;
  i64 width = 0;
  i64 out_pitch = 0;
  i32 function = 0;
  double parameter[kMaxParameters] = {};
  Nest<kArrays> nest;
};

// The functions; their order is the numbering that Python uses.
// clang-format off
#define JI_POINTWISE(X) \
  X(Add) X(Subtract) X(Multiply) X(Divide) X(DivideOrZero) X(Exp) X(Log) X(Sqrt) X(Scale) \
  X(ExpBelow) X(Softmax) X(SoftmaxGrad) X(LogSum) X(AddOffset) X(AddConstant) X(TieShare) \
  X(VarianceGrad) X(SqrtGrad) X(LeakyRelu) X(LeakyReluGrad) X(Clip) X(ClipGrad) \
  X(AddLeakyRelu) X(AddLeakyReluGrad) X(AttentionScore) X(AttentionExp) X(AttentionShare) \
  X(AttentionNumerator) X(AttentionFactor) X(AttentionScoreGrad) X(AttentionRawGrad) \
  X(ProductOfOthers) X(Copy)
// clang-format on

enum class Function : i32 {
#define JI_NAME(Name) k##Name,
  JI_POINTWISE(JI_NAME)
#undef JI_NAME
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

template <class A, int L>
struct PointwiseInput {
  using V = Vec<A, L>;
  const PointwiseArgs& a;
  V value[PointwiseArgs::kMaxOperands];
  A parameter[PointwiseArgs::kMaxParameters];
  JI_HD V operator[](int k) const { return value[k]; }
  JI_HD bool has(int k) const { return a.in[k].data != nullptr; }
};

template <class A, int L>
JI_HD Vec<A, L> vec_of(A value) {
  return Vec<A, L>{} + value;
}
// 0 where there is nothing to divide by.
template <class A, int L>
JI_HD Vec<A, L> quotient_or_zero(Vec<A, L> a, Vec<A, L> b) {
  return select<A, L>(b == Vec<A, L>{}, Vec<A, L>{}, a / b);
}

// Arguments of attention's functions. The raw score is a dot or, for additive attention, whatever
// is scored; the others may be absent, but dp, z and delta where a gradient needs them.
enum AttentionOperand { kRaw, kMultiplier, kBias, kMax, kSum, kWeight, kCotangent, kDelta };

// scale raw multiplier + bias: before it is clipped.
template <class A, int L>
JI_HD Vec<A, L> attention_score(const PointwiseInput<A, L>& v) {
  Vec<A, L> s = v[kRaw] * v.parameter[0];
  if (v.has(kMultiplier)) s = s * v[kMultiplier];
  if (v.has(kBias)) s = s + v[kBias];
  return s;
}
template <class A, int L>
JI_HD Vec<A, L> bounded(Vec<A, L> x, A low, A high) {
  return select<A, L>(x < vec_of<A, L>(low), vec_of<A, L>(low),
                      select<A, L>(x > vec_of<A, L>(high), vec_of<A, L>(high), x));
}
template <class A, int L>
JI_HD Vec<A, L> inside(Vec<A, L> x, A low, A high, Vec<A, L> yes) {
  using V = Vec<A, L>;
  return select<A, L>(x < vec_of<A, L>(low), V{}, select<A, L>(x > vec_of<A, L>(high), V{}, yes));
}
// p = exp(s - m); m is 0 where it is absent.
template <class A, int L>
JI_HD Vec<A, L> attention_exp(const PointwiseInput<A, L>& v) {
  const Vec<A, L> s = bounded<A, L>(attention_score<A, L>(v), v.parameter[1], v.parameter[2]);
  if (v.has(kMax)) return exp_below<A, L>(s, v[kMax]);
  return exp_of<A, L>(s);
}
// a = p / z
template <class A, int L>
JI_HD Vec<A, L> attention_share(const PointwiseInput<A, L>& v) {
  return quotient_or_zero<A, L>(attention_exp<A, L>(v), v[kSum]);
}
// a (c dp - delta), 0 where the score was clipped
template <class A, int L>
JI_HD Vec<A, L> attention_score_grad(const PointwiseInput<A, L>& v) {
  Vec<A, L> dp = v[kCotangent];
  if (v.has(kWeight)) dp = v[kWeight] * dp;
  const Vec<A, L> ds = attention_share<A, L>(v) * (dp - v[kDelta]);
  return inside<A, L>(attention_score<A, L>(v), v.parameter[1], v.parameter[2], ds);
}
template <class A, int L>
JI_HD Vec<A, L> attention_raw_grad(const PointwiseInput<A, L>& v) {
  Vec<A, L> t = attention_score_grad<A, L>(v);
  if (v.has(kMultiplier)) t = t * v[kMultiplier];
  return t * v.parameter[0];
}
// c a, the factor of a value
template <class A, int L>
JI_HD Vec<A, L> attention_factor(const PointwiseInput<A, L>& v) {
  const Vec<A, L> a = attention_share<A, L>(v);
  return v.has(kWeight) ? v[kWeight] * a : a;
}
// c p, the factor before the division
template <class A, int L>
JI_HD Vec<A, L> attention_numerator(const PointwiseInput<A, L>& v) {
  const Vec<A, L> p = attention_exp<A, L>(v);
  return v.has(kWeight) ? v[kWeight] * p : p;
}

#define JI_FUNCTION(Name, Expression)                          \
  struct Name {                                                \
    template <class A, int L>                                  \
    static JI_HD Vec<A, L> at(const PointwiseInput<A, L>& v) { \
      using V = Vec<A, L>;                                     \
      const auto& p = v.parameter;                             \
      (void)p;                                                 \
      return V(Expression);                                    \
    }                                                          \
  };

JI_FUNCTION(Add, v[0] + v[1])
JI_FUNCTION(Subtract, v[0] - v[1])
JI_FUNCTION(Multiply, v[0] * v[1])
JI_FUNCTION(Divide, v[0] / v[1])
JI_FUNCTION(DivideOrZero, (quotient_or_zero<A, L>(v[0], v[1])))
JI_FUNCTION(Exp, (exp_of<A, L>(v[0])))
JI_FUNCTION(Log, (log_of<A, L>(v[0])))
JI_FUNCTION(Sqrt, (sqrt_of<A, L>(v[0])))
JI_FUNCTION(Scale, v[0] * p[0])
// x, the largest x of the row
JI_FUNCTION(ExpBelow, (exp_below<A, L>(v[0], v[1])))
// x, the largest x of the row, the sum of exp(x - it)
JI_FUNCTION(Softmax, (quotient_or_zero<A, L>(exp_below<A, L>(v[0], v[1]), v[2])))
// softmax a, its cotangent, the row's sum of their product
JI_FUNCTION(SoftmaxGrad, v[0] * (v[1] - v[2]))
// largest x, sum of exp(x - it): -inf for a row with no edge
JI_FUNCTION(LogSum, (select<A, L>(v[1] == V{}, v[0], v[0] + log_of<A, L>(v[1]))))
// sum, offset weight m: sum + offset exp(-m), 0 for a row whose sum is 0 and whose m is -inf
JI_FUNCTION(AddOffset, (v[0] + vec_of<A, L>(p[0]) * exp_of<A, L>(-v[1])))
JI_FUNCTION(AddConstant, v[0] + p[0])
// x, the extremum of the row, the row's cotangent, the number of ties
JI_FUNCTION(TieShare, (tie<A, L>(v[0], v[1], v[2] / v[3])))
// x, the row's mean, the row's cotangent, the number of edges
JI_FUNCTION(VarianceGrad, v[2] * A(2) * (v[0] - v[1]) / v[3])
// standard deviation s, its cotangent: ct / (2 s), 0 where s is 0
JI_FUNCTION(SqrtGrad, (quotient_or_zero<A, L>(v[1], v[0] * A(2))))
JI_FUNCTION(LeakyRelu, (leaky<A, L>(v[0], p[0])))
// x, cotangent
JI_FUNCTION(LeakyReluGrad, (leaky_slope<A, L>(v[0], v[1], p[0])))
JI_FUNCTION(Clip, (bounded<A, L>(v[0], p[0], p[1])))
// x, cotangent: 1 on [low, high], 0 outside
JI_FUNCTION(ClipGrad, (inside<A, L>(v[0], p[0], p[1], v[1])))
JI_FUNCTION(AddLeakyRelu, (leaky<A, L>(v[0] + v[1], p[0])))
// x, y, the cotangent of leaky_relu(x + y)
JI_FUNCTION(AddLeakyReluGrad, (leaky_slope<A, L>(v[0] + v[1], v[2], p[0])))
JI_FUNCTION(AttentionScore, (bounded<A, L>(attention_score<A, L>(v), p[1], p[2])))
JI_FUNCTION(AttentionExp, (attention_exp<A, L>(v)))
JI_FUNCTION(AttentionShare, (attention_share<A, L>(v)))
JI_FUNCTION(AttentionNumerator, (attention_numerator<A, L>(v)))
JI_FUNCTION(AttentionFactor, (attention_factor<A, L>(v)))
JI_FUNCTION(AttentionScoreGrad, (attention_score_grad<A, L>(v)))
JI_FUNCTION(AttentionRawGrad, (attention_raw_grad<A, L>(v)))
JI_FUNCTION(Copy, v[0])
// x, the row's product as core/scaled.h has it: its value and its code
JI_FUNCTION(ProductOfOthers, (product_of_others<A, L>(v[0], v[1], v[2])))

// Calls fn(struct of the function).
template <class Fn>
JI_HD void with_function(i32 function, const Fn& fn) {
  switch ((Function)function) {
#define JI_CASE(Name)     \
  case Function::k##Name: \
    return fn(Name{});
    JI_POINTWISE(JI_CASE)
#undef JI_CASE
  }
}

template <class A>
JI_HD A load_number(const void* base, DType dtype, i64 element) {
  const MiniFloat none;
  switch (dtype) {
    case DType::kF64:
      return (A) static_cast<const double*>(base)[element];
    case DType::kF16:
      return (A)Codec<F16>::decode<1>(static_cast<const u16*>(base)[element], none);
    case DType::kBF16:
      return (A)Codec<BF16>::decode<1>(static_cast<const u16*>(base)[element], none);
    default:
      return (A) static_cast<const float*>(base)[element];
  }
}

template <class A>
JI_HD void store_number(void* base, DType dtype, i64 element, A value) {
  const MiniFloat none;
  switch (dtype) {
    case DType::kF64:
      static_cast<double*>(base)[element] = (double)value;
      return;
    case DType::kF16:
      static_cast<u16*>(base)[element] = Codec<F16>::encode<1>((float)value, none);
      return;
    case DType::kBF16:
      static_cast<u16*>(base)[element] = Codec<BF16>::encode<1>((float)value, none);
      return;
    default:
      static_cast<float*>(base)[element] = (float)value;
  }
}

}  // namespace jax_index::JI_TARGET
