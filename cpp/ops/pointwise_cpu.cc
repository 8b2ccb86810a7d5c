// SPDX-License-Identifier: Apache-2.0
#include "launch/cpu.h"
#include "ops/pointwise.h"

namespace jax_index::JI_TARGET {
namespace {

// Elements of one slice, counted over edges and columns, are taken a register at a time.
template <class A>
struct PointwiseCpu {
  static constexpr int kLanes = kRegisterBytes / (int)sizeof(A);
  const PointwiseArgs& a;

  template <class F>
  void strip(i64 slice, i64 first, i64 last) const {
    i64 base[PointwiseArgs::kMaxOperands];
    bool flat[PointwiseArgs::kMaxOperands];
    for (int k = 0; k < PointwiseArgs::kMaxOperands; ++k) {
      const PointwiseOperand& in = a.in[k];
      if (!in.data) continue;
      base[k] = offset_of(a.nest, slice, PointwiseArgs::kIn + k);
      flat[k] = !in.by_row && in.group == 1 && in.pitch == a.width && in.dtype == native();
    }
    const i32* ids = a.ids ? a.ids + offset_of(a.nest, slice, PointwiseArgs::kIds) : nullptr;
    const i64 to = offset_of(a.nest, slice, PointwiseArgs::kOut);
    const bool flat_out = a.out_pitch == a.width && a.out_dtype == native();
    PointwiseInput<A, kLanes> v{a, {}, {}};
    for (int k = 0; k < PointwiseArgs::kMaxParameters; ++k) v.parameter[k] = (A)a.parameter[k];
    for (i64 i = first; i < last; i += kLanes) {
      const int lanes = last - i < kLanes ? (int)(last - i) : kLanes;
      i64 edge[kLanes], row[kLanes], column[kLanes];
      i64 e = i / a.width;
      i64 c = i - e * a.width;
      for (int j = 0; j < kLanes; ++j) {
        edge[j] = e;
        row[j] = ids && j < lanes ? (i64)ids[e] : e;
        if ((u64)row[j] >= (u64)a.num_rows) row[j] = -1;
        column[j] = c;
        if (++c == a.width) {
          c = 0;
          ++e;
        }
      }
      for (int k = 0; k < PointwiseArgs::kMaxOperands; ++k) {
        const PointwiseOperand& in = a.in[k];
        if (!in.data) continue;
        if (flat[k] && lanes == kLanes) {
          memcpy(&v.value[k], static_cast<const A*>(in.data) + base[k] + i, sizeof(v.value[k]));
          continue;
        }
        A lane[kLanes] = {};
        for (int j = 0; j < lanes; ++j) {
          const i64 at = in.by_row ? row[j] : edge[j];
          if (at >= 0)
            lane[j] = load_number<A>(
                in.data, in.dtype,
                base[k] + at * in.pitch + (in.group == 1 ? column[j] : column[j] / in.group));
        }
        memcpy(&v.value[k], lane, sizeof(lane));
      }
      const Vec<A, kLanes> result = F::template at<A, kLanes>(v);
      if (flat_out && !ids && lanes == kLanes) {
        memcpy(static_cast<A*>(a.out) + to + i, &result, sizeof(result));
        continue;
      }
      A lane[kLanes];
      memcpy(lane, &result, sizeof(lane));
      // An edge of no row gets 0.
      for (int j = 0; j < lanes; ++j)
        store_number<A>(a.out, a.out_dtype, to + edge[j] * a.out_pitch + column[j],
                        row[j] < 0 ? A(0) : lane[j]);
    }
  }

  static constexpr DType native() { return sizeof(A) == 8 ? DType::kF64 : DType::kF32; }

  void run(const Cpu& cpu) const {
    constexpr i64 kPerBlock = 1 << 13;
    const i64 count = a.num_edges * a.width;
    const i64 blocks = (count + kPerBlock - 1) / kPerBlock;
    for_each_block(cpu, a.nest.slices * blocks, [&](i64 unit) {
      const i64 first = unit % blocks * kPerBlock;
      const i64 last = first + kPerBlock < count ? first + kPerBlock : count;
      with_function(a.function, [&](auto f) { strip<decltype(f)>(unit / blocks, first, last); });
    });
  }
};

}  // namespace

void run(const Cpu& cpu, const PointwiseArgs& a) {
  bool doubles = false;
  for (const PointwiseOperand& in : a.in) doubles = doubles || (in.data && in.dtype == DType::kF64);
  if (doubles) return PointwiseCpu<double>{a}.run(cpu);
  PointwiseCpu<float>{a}.run(cpu);
}

}  // namespace jax_index::JI_TARGET
