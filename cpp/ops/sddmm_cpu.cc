// SPDX-License-Identifier: Apache-2.0
#include "launch/cpu.h"
#include "ops/sddmm.h"

namespace jax_index::JI_TARGET {
namespace {

enum class Dot { kReal, kAdditive, kComplex };

template <class T, Dot kind = Dot::kReal>
struct SddmmCpu {
  using A = AccOf<T>;
  using Bits = BitsOf<T>;
  static constexpr bool kAdditive = kind == Dot::kAdditive;
  static constexpr int kPer = kind == Dot::kComplex ? 2 : 1;  // elements of a number
  static constexpr int kLanes = kRegisterBytes / (int)sizeof(A);
  static constexpr int kWide = kPer * kDotLanes;  // elements of all accumulators
  static constexpr int kParts = kWide / kLanes;
  using Number = Tile<A, 1, kPer>;
  const SddmmArgs& a;

  template <int L, int K>
  Tile<A, L, K> step(const Bits* x, const Bits* y, const Bits* att,
                     const Tile<A, L, K>& sum) const {
    const MiniFloat none;
    const auto load = [&](const Bits* at) { return load_tile<T, L, K>(at, none); };
    if constexpr (kind == Dot::kComplex) {
      return complex_fma<A, L, K>(load(x), load(y), sum);
    } else {
      Tile<A, L, K> shared{};
      if constexpr (kAdditive) shared = load(att);
      return {
          dot_step<A, L, kAdditive>(load(x).head, load(y).head, shared.head, (A)a.slope, sum.head)};
    }
  }

  Number dot(const Bits* x, const Bits* y, const Bits* att) const {
    Tile<A, kLanes, 1> part[kParts] = {};
    i64 d = 0;
    for (; d + kWide <= a.depth; d += kWide)
      for (int k = 0; k < kParts; ++k) {
        const i64 at = d + k * kLanes;
        part[k] = step<kLanes, 1>(x + at, y + at, att + (kAdditive ? at : 0), part[k]);
      }
    Number sum[kDotLanes];
    memcpy(sum, part, sizeof(sum));
    for (int j = 0; d < a.depth; ++j, d += kPer)
      sum[j] = step<1, kPer>(x + d, y + d, att + (kAdditive ? d : 0), sum[j]);
    for (int count = kDotLanes / 2; count > 0; count /= 2)
      for (int j = 0; j < count; ++j)
        sum[j] = TileFold<Sum, Number>::combine(sum[2 * j], sum[2 * j + 1]);
    return sum[0];
  }

  void edges(const SddmmSlice& s, i64 first, i64 last) const {
    constexpr i64 kAhead = 8;
    const Bits* x = static_cast<const Bits*>(a.x) + s.at(SddmmArgs::kX);
    const Bits* y = static_cast<const Bits*>(a.y) + s.at(SddmmArgs::kY);
    const Bits* att = kAdditive ? static_cast<const Bits*>(a.att) + s.at(SddmmArgs::kAtt) : nullptr;
    const i64 out = s.at(SddmmArgs::kOut);
    for (i64 p = first; p < last; ++p) {
      const Pair next = p + kAhead < last ? s.pair(p + kAhead) : Pair{};
      if (next.there()) {
        JI_PREFETCH(x + next.x * a.x_pitch);
        JI_PREFETCH(y + next.y * a.y_pitch);
      }
      const Pair pair = s.pair(p);
      if (pair.edge < 0) continue;
      for (i64 g = 0; g < a.groups; ++g) {
        Number value{};
        if (pair.there())
          value = dot(x + pair.x * a.x_pitch + g * a.depth, y + pair.y * a.y_pitch + g * a.depth,
                      kAdditive ? att + g * a.depth : nullptr);
        const i64 to = out + pair.edge * a.out_pitch + g * kPer;
        tile_each(value, [&](int k, A part) { store_dot<T>(a, to + k, part); });
      }
    }
  }

  void run(const Cpu& cpu) const {
    const i64 bytes = a.nest.slices * a.num_edges * a.groups * a.depth * (i64)sizeof(Bits);
    const Cpu serial;
    i64 blocks = bytes < kSerialBytes ? 1 : 16 * (i64)cpu.num_threads / a.nest.slices + 1;
    const i64 per_block = (a.num_edges + blocks - 1) / blocks;
    blocks = (a.num_edges + per_block - 1) / per_block;
    for_each_block(bytes < kSerialBytes ? serial : cpu, a.nest.slices * blocks, [&](i64 unit) {
      const i64 first = unit % blocks * per_block;
      const i64 last = first + per_block < a.num_edges ? first + per_block : a.num_edges;
      edges(SddmmSlice{a, unit / blocks}, first, last);
    });
  }
};

template <class T>
void run_type(const Cpu& cpu, const SddmmArgs& a) {
  if constexpr (sizeof(BitsOf<T>) >= 4) {
    if (a.complex) return SddmmCpu<T, Dot::kComplex>{a}.run(cpu);
  }
  if (a.att) return SddmmCpu<T, Dot::kAdditive>{a}.run(cpu);
  SddmmCpu<T>{a}.run(cpu);
}

}  // namespace

void run(const Cpu& cpu, const SddmmArgs& a) {
  switch (a.dtype) {
    case DType::kF64:
      return run_type<double>(cpu, a);
    case DType::kF16:
      return run_type<F16>(cpu, a);
    case DType::kBF16:
      return run_type<BF16>(cpu, a);
    case DType::kU32:
      return SddmmCpu<u32>{a}.run(cpu);
    case DType::kU64:
      return SddmmCpu<u64>{a}.run(cpu);
    default:
      return run_type<float>(cpu, a);
  }
}

}  // namespace jax_index::JI_TARGET
