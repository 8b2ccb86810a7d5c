// SPDX-License-Identifier: Apache-2.0
#include "launch/cpu.h"
#include "ops/pointwise.h"

namespace jax_index::JI_TARGET {
namespace {

// Elements are taken a register at a time: along a row, or, where rows are narrower, over edges and
// columns.
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

  // kLanes neighbouring elements as they are stored.
  static Vec<A, kLanes> load_lanes(const void* base, DType dtype, i64 element) {
    const MiniFloat none;
    if (dtype == native()) {
      Vec<A, kLanes> out;
      memcpy(&out, static_cast<const A*>(base) + element, sizeof(out));
      return out;
    }
    if constexpr (sizeof(A) == 4) {
      Vec<u16, kLanes> bits;
      memcpy(&bits, static_cast<const u16*>(base) + element, sizeof(bits));
      if (dtype == DType::kBF16) return Codec<BF16>::decode<kLanes>(bits, none);
      return Codec<F16>::decode<kLanes>(bits, none);
    } else {
      Vec<A, kLanes> out{};
      for (int j = 0; j < kLanes; ++j) out[j] = load_number<A>(base, dtype, element + j);
      return out;
    }
  }
  static void store_lanes(void* base, DType dtype, i64 element, Vec<A, kLanes> value) {
    const MiniFloat none;
    if (dtype == native()) {
      memcpy(static_cast<A*>(base) + element, &value, sizeof(value));
      return;
    }
    if constexpr (sizeof(A) == 4) {
      const Vec<u16, kLanes> bits = dtype == DType::kBF16 ? Codec<BF16>::encode<kLanes>(value, none)
                                                          : Codec<F16>::encode<kLanes>(value, none);
      memcpy(static_cast<u16*>(base) + element, &bits, sizeof(bits));
    } else {
      for (int j = 0; j < kLanes; ++j) store_number<A>(base, dtype, element + j, value[j]);
    }
  }

  // Rows of a register and more: the places of the operands are found once for a row.
  template <class F>
  void rows(i64 slice, i64 first, i64 last) const {
    constexpr int kOperands = PointwiseArgs::kMaxOperands;
    i64 base[kOperands] = {};
    for (int k = 0; k < kOperands; ++k)
      if (a.in[k].data) base[k] = offset_of(a.nest, slice, PointwiseArgs::kIn + k);
    const i32* ids = a.ids ? a.ids + offset_of(a.nest, slice, PointwiseArgs::kIds) : nullptr;
    const i64 to = offset_of(a.nest, slice, PointwiseArgs::kOut);
    PointwiseInput<A, kLanes> v{a, {}, {}};
    for (int k = 0; k < PointwiseArgs::kMaxParameters; ++k) v.parameter[k] = (A)a.parameter[k];
    for (i64 e = first; e < last; ++e) {
      const i64 row = ids ? (i64)ids[e] : e;
      const bool there = (u64)row < (u64)a.num_rows;
      i64 at[kOperands] = {};
      for (int k = 0; k < kOperands; ++k) {
        const PointwiseOperand& in = a.in[k];
        if (in.data) at[k] = base[k] + (in.by_row ? (there ? row : 0) : e) * in.pitch;
      }
      const i64 out = to + e * a.out_pitch;
      for (i64 c = 0; c < a.width; c += kLanes) {
        const int lanes = a.width - c < kLanes ? (int)(a.width - c) : kLanes;
        for (int k = 0; k < kOperands; ++k) {
          const PointwiseOperand& in = a.in[k];
          if (!in.data || (in.by_row && !there)) continue;
          if (in.group == 1 && lanes == kLanes) {
            v.value[k] = load_lanes(in.data, in.dtype, at[k] + c);
          } else if (in.group != 1 && c / in.group == (c + lanes - 1) / in.group) {
            v.value[k] = vec_of<A, kLanes>(load_number<A>(in.data, in.dtype, at[k] + c / in.group));
          } else {
            A lane[kLanes] = {};
            for (int j = 0; j < lanes; ++j)
              lane[j] = load_number<A>(in.data, in.dtype, at[k] + (c + j) / in.group);
            memcpy(&v.value[k], lane, sizeof(lane));
          }
        }
        Vec<A, kLanes> result{};
        if (there) result = F::template at<A, kLanes>(v);
        if (lanes == kLanes) {
          store_lanes(a.out, a.out_dtype, out + c, result);
        } else {
          for (int j = 0; j < lanes; ++j)
            store_number<A>(a.out, a.out_dtype, out + c + j, result[j]);
        }
      }
    }
  }

  static constexpr DType native() { return sizeof(A) == 8 ? DType::kF64 : DType::kF32; }

  void run(const Cpu& cpu) const {
    constexpr i64 kPerBlock = 1 << 13;
    if (a.width >= kLanes && a.num_edges > 1) {
      const i64 each = a.width >= kPerBlock ? 1 : kPerBlock / a.width;
      const i64 parts = (a.num_edges + each - 1) / each;
      for_each_block(cpu, a.nest.slices * parts, [&](i64 unit) {
        const i64 first = unit % parts * each;
        const i64 last = first + each < a.num_edges ? first + each : a.num_edges;
        with_function(a.function, [&](auto f) { rows<decltype(f)>(unit / parts, first, last); });
      });
      return;
    }
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
