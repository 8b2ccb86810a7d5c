// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda.cuh"
#include "ops/sddmm.h"

namespace jax_index::JI_TARGET {
namespace {

// A dot is computed by a team of neighbouring threads, each owning N neighbouring accumulators. A
// team of fewer threads than kDotLanes / N serves dots of few features: the accumulators that are
// left out are +0.
struct DotGrid {
  i64 first_block;
  i64 per_slice;  // dots
  i64 x_bytes;    // from row to row
  i64 y_bytes;
  int team;  // threads; a power of two
};

// Adds neighbours, five times.
template <class A, int N>
__device__ __forceinline__ A team_sum(A* sum, int team) {
  JI_UNROLL
  for (int count = N / 2; count > 0; count /= 2) JI_UNROLL
  for (int i = 0; i < N / 2; ++i)
    if (i < count) sum[i] = sum[2 * i] + sum[2 * i + 1];
  A total = sum[0];
  JI_UNROLL
  for (int step = 1; step < kDotLanes / N; step *= 2)
    if (step < team) total = total + __shfl_xor_sync(~0u, total, step);
  // The levels that a small team leaves out add +0.
  if (team * N < kDotLanes) total = total + A(0);
  return total;
}

template <class Policy, class T, int N, bool Additive>
__global__ __launch_bounds__(Policy::kThreads) void dot_kernel(const __grid_constant__ SddmmArgs a,
                                                               const __grid_constant__ DotGrid g) {
  using A = AccOf<T>;
  using Word = RawTile<T, 1, N>;
  constexpr int kDots = Policy::kDots;
  const MiniFloat none;
  const int lane = (int)threadIdx.x & (g.team - 1);
  const int teams = Policy::kThreads / g.team;
  const i64 block = g.first_block + blockIdx.x;
  const i64 first = block * teams * kDots + threadIdx.x / (u32)g.team;
  const auto* x = static_cast<const BitsOf<T>*>(a.x);
  const auto* y = static_cast<const BitsOf<T>*>(a.y);
  Pair pair[kDots];
  i64 from_x[kDots];
  i64 from_y[kDots];
  i64 from_att[kDots];
  i64 to[kDots];
  JI_UNROLL
  for (int k = 0; k < kDots; ++k) {
    i64 dot = first + (i64)k * teams;
    const bool inside = dot < a.nest.slices * g.per_slice;
    if (!inside) dot = 0;
    i64 slice = 0;
    if (a.nest.slices > 1) {
      slice = dot / g.per_slice;
      dot %= g.per_slice;
    }
    i64 position = dot;
    i64 group = 0;
    if (a.groups > 1) {
      position = dot / a.groups;
      group = dot % a.groups;
    }
    const SddmmSlice s{a, slice};
    if (inside) pair[k] = s.pair(position);
    from_x[k] = s.at(SddmmArgs::kX) + pair[k].x * a.x_pitch + group * a.depth;
    from_y[k] = s.at(SddmmArgs::kY) + pair[k].y * a.y_pitch + group * a.depth;
    if constexpr (Additive) from_att[k] = s.at(SddmmArgs::kAtt) + group * a.depth;
    to[k] = s.at(SddmmArgs::kOut) + pair[k].edge * a.out_pitch + group;
  }
  A sum[kDots][N];
  JI_UNROLL
  for (int k = 0; k < kDots; ++k) JI_UNROLL
  for (int i = 0; i < N; ++i) sum[k][i] = A(0);
  for (i64 d = (i64)lane * N; d < a.depth; d += kDotLanes) {
    Word left[kDots];
    Word right[kDots];
    Word shared[kDots];
    JI_UNROLL
    for (int k = 0; k < kDots; ++k) {
      if (pair[k].there()) {
        left[k] = load_word<Word>(x + from_x[k] + d);
        right[k] = load_word<Word>(y + from_y[k] + d);
        if constexpr (Additive)
          shared[k] = load_word<Word>(static_cast<const BitsOf<T>*>(a.att) + from_att[k] + d);
      }
    }
    JI_UNROLL
    for (int k = 0; k < kDots; ++k) {
      if (!pair[k].there()) continue;
      BitsOf<T> u[N];
      BitsOf<T> v[N];
      BitsOf<T> w[N] = {};
      memcpy(u, &left[k], sizeof(Word));
      memcpy(v, &right[k], sizeof(Word));
      if constexpr (Additive) memcpy(w, &shared[k], sizeof(Word));
      JI_UNROLL
      for (int i = 0; i < N; ++i)
        sum[k][i] = dot_step<A, 1, Additive>(
            Codec<T>::template decode<1>(u[i], none), Codec<T>::template decode<1>(v[i], none),
            Codec<T>::template decode<1>(w[i], none), (A)a.slope, sum[k][i]);
    }
  }
  JI_UNROLL
  for (int k = 0; k < kDots; ++k) {
    JI_UNROLL
    for (int count = N / 2; count > 0; count /= 2) JI_UNROLL
    for (int i = 0; i < N / 2; ++i)
      if (i < count) sum[k][i] = sum[k][2 * i] + sum[k][2 * i + 1];
    A total = sum[k][0];
    for (int step = 1; step < g.team; step *= 2) {
      const A other = __shfl_xor_sync(~0u, total, step);
      total = total + other;
    }
    // The levels that a small team leaves out add +0.
    if (g.team * N < kDotLanes) total = total + A(0);
    if (lane == 0 && pair[k].edge >= 0) store_dot<T>(a, to[k], pair[k].there() ? total : A(0));
  }
}

// An edge of a span, and the rows that it joins.
struct SpanEdge {
  i32 edge;
  i32 from;
  i32 row;
};

// Neighbouring edges of the CSR share a receiver: a team takes a span of them and keeps the row of
// y while it lasts. Steps: words of a row that a thread holds.
template <class Policy, class T, int N, int Steps>
__global__ __launch_bounds__(Policy::kThreads, Policy::kMinBlocks) void span_kernel(
    const __grid_constant__ SddmmArgs a, const __grid_constant__ DotGrid g) {
  using A = AccOf<T>;
  using Word = RawTile<T, 1, N>;
  constexpr int kDots = Policy::template kDots<Steps>;
  const MiniFloat none;
  const int lane = (int)threadIdx.x & (g.team - 1);
  i64 unit = (g.first_block + blockIdx.x) * (Policy::kThreads / g.team) + threadIdx.x / (u32)g.team;
  // Threads of a warp stay together: a team without work goes through the motions.
  const bool inside = unit < a.nest.slices * g.per_slice;
  if (!inside) unit = 0;
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = unit / g.per_slice;
    unit %= g.per_slice;
  }
  i64 group = 0;
  if (a.groups > 1) {
    group = unit % a.groups;
    unit /= a.groups;
  }
  const SddmmSlice s{a, slice};
  const i64 column = group * a.depth + lane * N;
  const auto* x = static_cast<const BitsOf<T>*>(a.x) + s.at(SddmmArgs::kX) + column;
  const auto* y = static_cast<const BitsOf<T>*>(a.y) + s.at(SddmmArgs::kY) + column;
  // Words of a row that this thread has.
  int words = 0;
  JI_UNROLL
  for (int w = 0; w < Steps; ++w) words += (i64)lane * N + w * kDotLanes < a.depth;
  const i64 out = s.at(SddmmArgs::kOut) + group;
  const i32* order = a.order ? a.order + s.at(SddmmArgs::kOrder) : nullptr;
  const i32* x_rows = a.x_rows ? a.x_rows + s.at(SddmmArgs::kXRows) : nullptr;
  const i32* y_rows = a.y_rows + s.at(SddmmArgs::kYRows);
  const i64 first = unit * Policy::kSpan;
  const i64 last =
      inside ? (first + Policy::kSpan < a.num_edges ? first + Policy::kSpan : a.num_edges) : first;
  // The team reads the places of its whole span side by side, so that loads of rows need not wait
  // for one index after the other.
  __shared__ SpanEdge spans[Policy::kThreads * Policy::kSpan];
  SpanEdge* span = spans + threadIdx.x / (u32)g.team * Policy::kSpan;
  for (int k = lane; k < Policy::kSpan; k += g.team) {
    SpanEdge at = {-1, -1, -1};
    const i64 position = first + k;
    if (position < last) {
      at.edge = order ? __ldg(order + position) : (i32)position;
      at.from = x_rows ? __ldg(x_rows + position) : (i32)position;
      if ((u32)at.edge < (u32)a.num_edges) at.row = __ldg(y_rows + at.edge);
    }
    span[k] = at;
  }
  __syncwarp();
  i32 held = -1;
  Word right[Steps] = {};
  for (int done = 0; done < Policy::kSpan; done += kDots) {
    i32 edge[kDots];
    i32 from[kDots];
    i32 row[kDots];
    JI_UNROLL
    for (int k = 0; k < kDots; ++k) {
      const SpanEdge at = span[done + k];
      edge[k] = at.edge;
      from[k] = at.from;
      row[k] = at.row;
    }
    Word left[kDots][Steps];
    JI_UNROLL
    for (int k = 0; k < kDots; ++k) {
      if ((u32)from[k] >= (u32)a.num_x) continue;
      const auto* at = row_at(x, from[k], g.x_bytes);
      JI_UNROLL
      for (int w = 0; w < Steps; ++w)
        if (w < words) left[k][w] = load_word<Word>(at + w * kDotLanes);
    }
    JI_UNROLL
    for (int k = 0; k < kDots; ++k) {
      if ((u32)row[k] < (u32)a.num_y && row[k] != held) {
        held = row[k];
        const auto* at = row_at(y, held, g.y_bytes);
        JI_UNROLL
        for (int w = 0; w < Steps; ++w)
          if (w < words) right[w] = load_word<Word>(at + w * kDotLanes);
      }
      const bool there = (u32)from[k] < (u32)a.num_x && (u32)row[k] < (u32)a.num_y;
      A sum[N];
      JI_UNROLL
      for (int i = 0; i < N; ++i) sum[i] = A(0);
      JI_UNROLL
      for (int w = 0; w < Steps; ++w) {
        if (!there || w >= words) continue;
        BitsOf<T> u[N];
        BitsOf<T> v[N];
        memcpy(u, &left[k][w], sizeof(Word));
        memcpy(v, &right[w], sizeof(Word));
        JI_UNROLL
        for (int i = 0; i < N; ++i)
          sum[i] = fma<A, 1>(Codec<T>::template decode<1>(u[i], none),
                             Codec<T>::template decode<1>(v[i], none), sum[i]);
      }
      const A total = team_sum<A, N>(sum, g.team);
      if (lane == 0 && (u32)edge[k] < (u32)a.num_edges)
        store_dot<T>(a, out + edge[k] * a.out_pitch, there ? total : A(0));
    }
  }
}

template <class Policy, class T, int N, int Steps>
void spans(const Cuda& cuda, const SddmmArgs& a, DotGrid g) {
  g.per_slice = ceil_div(a.num_edges, Policy::kSpan) * a.groups;
  const i64 per_block = Policy::kThreads / g.team;
  for_each_grid(ceil_div(a.nest.slices * g.per_slice, per_block), [&](i64 first, unsigned grid) {
    g.first_block = first;
    span_kernel<Policy, T, N, Steps><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
  });
}

template <class T, int N, bool Additive = false>
void dots(const Cuda& cuda, const SddmmArgs& a) {
  if constexpr (!Additive && (AccOf<T>(0.5) > AccOf<T>(0))) {
    if (a.att != nullptr) return dots<T, N, true>(cuda, a);
  }
  if constexpr (N > 1) {
    u64 distances = (u64)a.depth | (u64)a.x_pitch | (u64)a.y_pitch;
    for (int d = 0; d < a.nest.rank; ++d)
      distances |= (u64)(a.nest.stride[d][SddmmArgs::kX] | a.nest.stride[d][SddmmArgs::kY] |
                         a.nest.stride[d][SddmmArgs::kAtt]);
    const u64 addresses =
        reinterpret_cast<u64>(a.x) | reinterpret_cast<u64>(a.y) | reinterpret_cast<u64>(a.att);
    if (distances % N || addresses % (N * sizeof(BitsOf<T>))) return dots<T, 1, Additive>(cuda, a);
  }
  using Policy = Dots;
  DotGrid g = {};
  g.per_slice = a.num_edges * a.groups;
  g.x_bytes = a.x_pitch * (i64)sizeof(BitsOf<T>);
  g.y_bytes = a.y_pitch * (i64)sizeof(BitsOf<T>);
  g.team = 1;
  while (g.team * N < kDotLanes && g.team * N < a.depth) g.team *= 2;
  if constexpr (!Additive && N > 1) {
    if (a.y_rows != nullptr && a.depth <= kDotLanes) return spans<DotSpans, T, N, 1>(cuda, a, g);
    if (a.y_rows != nullptr && a.depth <= 2 * kDotLanes)
      return spans<DotSpans, T, N, 2>(cuda, a, g);
    if (a.y_rows != nullptr && a.depth <= 4 * kDotLanes)
      return spans<DotSpans, T, N, 4>(cuda, a, g);
  }
  const i64 per_block = (i64)Policy::kThreads / g.team * Policy::kDots;
  for_each_grid(ceil_div(a.nest.slices * g.per_slice, per_block), [&](i64 first, unsigned grid) {
    g.first_block = first;
    dot_kernel<Policy, T, N, Additive><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
  });
}

// Dots of complex numbers: a team for each, every thread with one accumulator.
template <class Policy, class T>
__global__ __launch_bounds__(Policy::kThreads) void complex_dot_kernel(
    const __grid_constant__ SddmmArgs a, const __grid_constant__ DotGrid g) {
  using Number = Tile<T, 1, 2>;
  const MiniFloat none;
  const int lane = (int)threadIdx.x & (g.team - 1);
  i64 dot = (g.first_block + blockIdx.x) * (Policy::kThreads / g.team) + threadIdx.x / (u32)g.team;
  // Threads of a warp stay together: a team without work goes through the motions.
  const bool inside = dot < a.nest.slices * g.per_slice;
  if (!inside) dot = 0;
  const SddmmSlice s{a, dot / g.per_slice};
  const i64 position = dot % g.per_slice / a.groups;
  const i64 group = dot % a.groups;
  Pair pair;
  if (inside) pair = s.pair(position);
  Number sum = {};
  if (pair.there()) {
    const T* x = static_cast<const T*>(a.x) + s.at(SddmmArgs::kX) + pair.x * a.x_pitch;
    const T* y = static_cast<const T*>(a.y) + s.at(SddmmArgs::kY) + pair.y * a.y_pitch;
    x += group * a.depth;
    y += group * a.depth;
    for (i64 d = 2 * lane; d < a.depth; d += 2 * kDotLanes)
      sum = complex_fma<T, 1, 2>(load_tile<T, 1, 2>(x + d, none), load_tile<T, 1, 2>(y + d, none),
                                 sum);
  }
  for (int step = 1; step < g.team; step *= 2) {
    const T re = __shfl_xor_sync(~0u, sum.head, step);
    const T im = __shfl_xor_sync(~0u, sum.tail.head, step);
    sum.head = sum.head + re;
    sum.tail.head = sum.tail.head + im;
  }
  // The levels that a small team leaves out add +0.
  if (g.team < kDotLanes) sum = {sum.head + T(0), {sum.tail.head + T(0)}};
  if (lane != 0 || pair.edge < 0) return;
  if (!pair.there()) sum = {};
  const i64 to = s.at(SddmmArgs::kOut) + pair.edge * a.out_pitch + 2 * group;
  store_dot<T>(a, to, sum.head);
  store_dot<T>(a, to + 1, sum.tail.head);
}

template <class T>
void complex_dots(const Cuda& cuda, const SddmmArgs& a) {
  using Policy = Dots;
  DotGrid g = {};
  g.per_slice = a.num_edges * a.groups;
  g.team = 1;
  while (g.team < kDotLanes && 2 * g.team < a.depth) g.team *= 2;
  const i64 per_block = Policy::kThreads / g.team;
  for_each_grid(ceil_div(a.nest.slices * g.per_slice, per_block), [&](i64 first, unsigned grid) {
    g.first_block = first;
    complex_dot_kernel<Policy, T><<<grid, Policy::kThreads, 0, cuda.stream>>>(a, g);
  });
}

}  // namespace

void run(const Cuda& cuda, const SddmmArgs& a) {
  if (a.complex) {
    if (a.dtype == DType::kF64) return complex_dots<double>(cuda, a);
    return complex_dots<float>(cuda, a);
  }
  switch (a.dtype) {
    case DType::kF64:
      return dots<double, 2>(cuda, a);
    case DType::kF16:
      return dots<F16, 1>(cuda, a);
    case DType::kBF16:
      return dots<BF16, 8>(cuda, a);
    case DType::kU32:
      return dots<u32, 1>(cuda, a);
    case DType::kU64:
      return dots<u64, 1>(cuda, a);
    default:
      return dots<float, 4>(cuda, a);
  }
}

}  // namespace jax_index::JI_TARGET
