// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda.cuh"
#include "ops/pointwise.h"

namespace jax_index::JI_TARGET {
namespace {

// N neighbouring elements of a row belong to a thread, so that it finds its places once for all of
// them. Index: u32 where all threads can be counted with it; its divisions are much cheaper.
struct ElementGrid {
  i64 first_block;
  i64 threads;  // of all elements
  i64 per_row;  // threads of a row
  bool words;   // N elements can be read and written as one word
};

// Elements at(0) to at(N - 1).
template <class A, class T, int N, class At>
__device__ __forceinline__ void load_codes(const void* base, const At& at, A* out) {
  const MiniFloat none;
  JI_UNROLL
  for (int j = 0; j < N; ++j)
    out[j] = (A)Codec<T>::template decode<1>(static_cast<const BitsOf<T>*>(base)[at(j)], none);
}
template <class A, int N, class At>
__device__ __forceinline__ void load_each(const void* base, DType dtype, const At& at, A* out) {
  switch (dtype) {
    case DType::kF64:
      return load_codes<A, double, N>(base, at, out);
    case DType::kF16:
      return load_codes<A, F16, N>(base, at, out);
    case DType::kBF16:
      return load_codes<A, BF16, N>(base, at, out);
    default:
      return load_codes<A, float, N>(base, at, out);
  }
}

// N elements from `element` on; `count` of them are there.
template <class A, int N>
__device__ __forceinline__ void load_numbers(const void* base, DType dtype, i64 element, int count,
                                             bool words, A* out) {
  if constexpr (N == 4 && sizeof(A) == 4) {
    if (words && dtype == DType::kF32) {
      const float4 word =
          __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(base) + element));
      out[0] = word.x;
      out[1] = word.y;
      out[2] = word.z;
      out[3] = word.w;
      return;
    }
  }
  if (count == N) return load_each<A, N>(base, dtype, [&](int j) { return element + j; }, out);
  JI_NO_UNROLL
  for (int j = 0; j < count; ++j) {
    const A value = load_number<A>(base, dtype, element + j);
    JI_UNROLL
    for (int i = 0; i < N; ++i)
      if (i == j) out[i] = value;
  }
}

template <class A, int N>
__device__ __forceinline__ void results(const PointwiseArgs& a,
                                        const A (&value)[PointwiseArgs::kMaxOperands][N],
                                        A* result) {
  PointwiseInput<A, 1> v{a, {}, {}};
  JI_UNROLL
  for (int k = 0; k < PointwiseArgs::kMaxParameters; ++k) v.parameter[k] = (A)a.parameter[k];
  with_function(a.function, [&](auto f) {
    JI_UNROLL
    for (int j = 0; j < N; ++j) {
      JI_UNROLL
      for (int k = 0; k < PointwiseArgs::kMaxOperands; ++k) v.value[k] = value[k][j];
      result[j] = decltype(f)::template at<A, 1>(v);
    }
  });
}

// Rows of one element: N neighbouring rows belong to a thread.
template <class A, int N>
__global__ __launch_bounds__(Elements::kThreads) void column_kernel(
    const __grid_constant__ PointwiseArgs a, const __grid_constant__ ElementGrid g) {
  i64 thread = (g.first_block + blockIdx.x) * Elements::kThreads + threadIdx.x;
  if (thread >= g.threads) return;
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = thread / g.per_row;
    thread %= g.per_row;
  }
  const i64 first = thread * N;
  const int count = a.num_edges - first < N ? (int)(a.num_edges - first) : N;
  const bool words = g.words && count == N;
  i32 row[N];
  if (a.ids == nullptr) {
    JI_UNROLL
    for (int j = 0; j < N; ++j) row[j] = (i32)first + j;
  } else {
    const i32* ids = a.ids + offset_of(a.nest, slice, PointwiseArgs::kIds) + first;
    if (words) {
      const int4 four = __ldg(reinterpret_cast<const int4*>(ids));
      row[0] = four.x;
      row[1] = four.y;
      row[2] = four.z;
      row[3] = four.w;
    } else {
      JI_UNROLL
      for (int j = 0; j < N; ++j) row[j] = j < count ? __ldg(ids + j) : -1;
    }
  }
  A value[PointwiseArgs::kMaxOperands][N];
  JI_UNROLL
  for (int k = 0; k < PointwiseArgs::kMaxOperands; ++k) {
    JI_UNROLL
    for (int j = 0; j < N; ++j) value[k][j] = A(0);
    const PointwiseOperand& in = a.in[k];
    if (in.data == nullptr) continue;
    const i64 base = offset_of(a.nest, slice, PointwiseArgs::kIn + k);
    if (in.by_row) {
      // A row that is not there reads another one; its result is 0 all the same.
      load_each<A, N>(
          in.data, in.dtype,
          [&](int j) {
            return base + ((u64)row[j] < (u64)a.num_rows ? row[j] : 0) * (i64)in.pitch;
          },
          value[k]);
    } else {
      load_numbers<A, N>(in.data, in.dtype, base + first, count, words, value[k]);
    }
  }
  A result[N];
  results<A, N>(a, value, result);
  JI_UNROLL
  for (int j = 0; j < N; ++j)
    if ((u64)row[j] >= (u64)a.num_rows) result[j] = A(0);
  const i64 to = offset_of(a.nest, slice, PointwiseArgs::kOut) + first;
  if constexpr (sizeof(A) == 4) {
    if (words && a.out_dtype == DType::kF32) {
      *reinterpret_cast<float4*>(static_cast<float*>(a.out) + to) =
          make_float4(result[0], result[1], result[2], result[3]);
      return;
    }
  }
  JI_UNROLL
  for (int j = 0; j < N; ++j)
    if (j < count) store_number<A>(a.out, a.out_dtype, to + j, result[j]);
}

// Whether neighbouring rows of one element lie side by side, and there are rows to look up.
bool is_column(const PointwiseArgs& a) {
  bool column = a.width == 1 && a.out_pitch == 1 && a.num_rows > 0;
  for (const PointwiseOperand& in : a.in)
    column = column && (in.data == nullptr || in.by_row || in.pitch == 1);
  return column;
}

template <class A>
void launch_column(const Cuda& cuda, const PointwiseArgs& a) {
  constexpr int N = 4;
  ElementGrid g = {};
  g.per_row = ceil_div(a.num_edges, N);  // of a slice
  g.threads = a.nest.slices * g.per_row;
  u64 distances = 0;
  u64 addresses = reinterpret_cast<u64>(a.out) | reinterpret_cast<u64>(a.ids);
  for (int k = 0; k < PointwiseArgs::kMaxOperands; ++k) {
    if (a.in[k].data == nullptr || a.in[k].by_row) continue;
    addresses |= reinterpret_cast<u64>(a.in[k].data);
    for (int d = 0; d < a.nest.rank; ++d)
      distances |= (u64)a.nest.stride[d][PointwiseArgs::kIn + k];
  }
  for (int d = 0; d < a.nest.rank; ++d)
    distances |=
        (u64)(a.nest.stride[d][PointwiseArgs::kOut] | a.nest.stride[d][PointwiseArgs::kIds]);
  g.words = distances % N == 0 && addresses % (N * sizeof(float)) == 0;
  for_each_grid(ceil_div(g.threads, Elements::kThreads), [&](i64 first, unsigned grid) {
    g.first_block = first;
    column_kernel<A, N><<<grid, Elements::kThreads, 0, cuda.stream>>>(a, g);
  });
}

template <class A, class Index, int N>
__global__ __launch_bounds__(Elements::kThreads) void pointwise_kernel(
    const __grid_constant__ PointwiseArgs a, const __grid_constant__ ElementGrid g) {
  const i64 thread = (g.first_block + blockIdx.x) * Elements::kThreads + threadIdx.x;
  if (thread >= g.threads) return;
  Index rest = (Index)thread;
  i64 column = 0;
  if (g.per_row > 1) {
    column = (i64)(rest % (Index)g.per_row) * N;
    rest /= (Index)g.per_row;
  }
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = rest / (Index)a.num_edges;
    rest %= (Index)a.num_edges;
  }
  const i64 edge = rest;
  const int count = a.width - column < N ? (int)(a.width - column) : N;
  i64 row = edge;
  if (a.ids) row = __ldg(a.ids + offset_of(a.nest, slice, PointwiseArgs::kIds) + edge);
  const bool there = (u64)row < (u64)a.num_rows;
  A value[PointwiseArgs::kMaxOperands][N];
  JI_UNROLL
  for (int k = 0; k < PointwiseArgs::kMaxOperands; ++k) {
    JI_UNROLL
    for (int j = 0; j < N; ++j) value[k][j] = A(0);
    const PointwiseOperand& in = a.in[k];
    if (in.data == nullptr || (in.by_row && !there)) continue;
    const i64 base =
        offset_of(a.nest, slice, PointwiseArgs::kIn + k) + (in.by_row ? row : edge) * in.pitch;
    if (in.group == 1) {
      load_numbers<A, N>(in.data, in.dtype, base + column, count, g.words, value[k]);
    } else {
      // Neighbours share elements; most often all of a thread's do.
      Index element = (Index)column / (Index)in.group;
      i64 left = (i64)(element + 1) * in.group - column;
      A shared = load_number<A>(in.data, in.dtype, base + element);
      JI_UNROLL
      for (int j = 0; j < N; ++j) {
        if (j >= left && j < count) {
          ++element;
          left += in.group;
          shared = load_number<A>(in.data, in.dtype, base + element);
        }
        value[k][j] = shared;
      }
    }
  }
  A result[N];
  results<A, N>(a, value, result);
  if (!there) {
    JI_UNROLL
    for (int j = 0; j < N; ++j) result[j] = A(0);
  }
  const i64 to = offset_of(a.nest, slice, PointwiseArgs::kOut) + edge * a.out_pitch + column;
  if constexpr (N == 4 && sizeof(A) == 4) {
    if (g.words && a.out_dtype == DType::kF32) {
      *reinterpret_cast<float4*>(static_cast<float*>(a.out) + to) =
          make_float4(result[0], result[1], result[2], result[3]);
      return;
    }
  }
  JI_UNROLL
  for (int j = 0; j < N; ++j)
    if (j < count) store_number<A>(a.out, a.out_dtype, to + j, result[j]);
}

template <class A, int N>
void launch_elements(const Cuda& cuda, const PointwiseArgs& a) {
  ElementGrid g = {};
  g.per_row = ceil_div(a.width, N);
  g.threads = a.nest.slices * a.num_edges * g.per_row;
  // Every row of every operand that is read element by element starts at a whole word.
  u64 distances = (u64)a.width | (u64)a.out_pitch;
  u64 addresses = reinterpret_cast<u64>(a.out);
  for (int k = 0; k < PointwiseArgs::kMaxOperands; ++k) {
    if (a.in[k].data == nullptr || a.in[k].group != 1) continue;
    distances |= (u64)a.in[k].pitch;
    addresses |= reinterpret_cast<u64>(a.in[k].data);
    for (int d = 0; d < a.nest.rank; ++d)
      distances |= (u64)a.nest.stride[d][PointwiseArgs::kIn + k];
  }
  for (int d = 0; d < a.nest.rank; ++d) distances |= (u64)a.nest.stride[d][PointwiseArgs::kOut];
  g.words = distances % N == 0 && addresses % (N * sizeof(float)) == 0;
  for_each_grid(ceil_div(g.threads, Elements::kThreads), [&](i64 first, unsigned grid) {
    g.first_block = first;
    if (g.threads < (i64)1 << 32) {
      pointwise_kernel<A, u32, N><<<grid, Elements::kThreads, 0, cuda.stream>>>(a, g);
    } else {
      pointwise_kernel<A, u64, N><<<grid, Elements::kThreads, 0, cuda.stream>>>(a, g);
    }
  });
}

template <class A>
void elements(const Cuda& cuda, const PointwiseArgs& a) {
  // Arrays that are walked alike are one long row.
  PointwiseArgs flat = a;
  bool alike = a.ids == nullptr && a.nest.slices == 1 && a.out_pitch == a.width;
  for (const PointwiseOperand& in : a.in)
    alike = alike && (in.data == nullptr || (in.group == 1 && in.pitch == a.width));
  if (alike) {
    flat.width = a.num_edges * a.width;
    flat.num_edges = flat.num_rows = 1;
    flat.out_pitch = flat.width;
    for (PointwiseOperand& in : flat.in) in.pitch = flat.width;
  }
  if (is_column(flat)) return launch_column<A>(cuda, flat);
  if (flat.width >= 4) return launch_elements<A, 4>(cuda, flat);
  launch_elements<A, 1>(cuda, flat);
}

}  // namespace

void run(const Cuda& cuda, const PointwiseArgs& a) {
  bool doubles = false;
  for (const PointwiseOperand& in : a.in)
    doubles = doubles || (in.data != nullptr && in.dtype == DType::kF64);
  if (doubles) return elements<double>(cuda, a);
  elements<float>(cuda, a);
}

}  // namespace jax_index::JI_TARGET
