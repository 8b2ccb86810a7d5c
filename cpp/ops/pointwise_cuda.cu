// SPDX-License-Identifier: Apache-2.0
#include "launch/cuda.cuh"
#include "ops/pointwise.h"

namespace jax_index::JI_TARGET {
namespace {

// Index: u32 where all elements can be counted with it; its divisions are much cheaper.
template <class A, class Index>
__global__ __launch_bounds__(Elements::kThreads) void pointwise_kernel(
    const __grid_constant__ PointwiseArgs a, i64 first_block, i64 total) {
  const i64 element = (first_block + blockIdx.x) * Elements::kThreads + threadIdx.x;
  if (element >= total) return;
  Index rest = (Index)element;
  const Index column = rest % (Index)a.width;
  rest /= (Index)a.width;
  i64 slice = 0;
  if (a.nest.slices > 1) {
    slice = rest / (Index)a.num_edges;
    rest %= (Index)a.num_edges;
  }
  const i64 edge = rest;
  i64 row = edge;
  if (a.ids) row = __ldg(a.ids + offset_of(a.nest, slice, PointwiseArgs::kIds) + edge);
  const bool there = (u64)row < (u64)a.num_rows;
  PointwiseInput<A, 1> v{a, {}, {}};
  JI_UNROLL
  for (int k = 0; k < PointwiseArgs::kMaxParameters; ++k) v.parameter[k] = (A)a.parameter[k];
  JI_UNROLL
  for (int k = 0; k < PointwiseArgs::kMaxOperands; ++k) {
    v.value[k] = A(0);
    const PointwiseOperand& in = a.in[k];
    if (in.data == nullptr) continue;
    if (in.by_row && !there) continue;
    const i64 group = in.group == 1 ? (i64)column : (i64)(column / (Index)in.group);
    v.value[k] = load_number<A>(in.data, in.dtype,
                                offset_of(a.nest, slice, PointwiseArgs::kIn + k) +
                                    (in.by_row ? row : edge) * in.pitch + group);
  }
  A result = A(0);
  with_function(a.function, [&](auto f) { result = decltype(f)::template at<A, 1>(v); });
  store_number<A>(a.out, a.out_dtype,
                  offset_of(a.nest, slice, PointwiseArgs::kOut) + edge * a.out_pitch + column,
                  there ? result : A(0));
}

template <class A>
void elements(const Cuda& cuda, const PointwiseArgs& a) {
  const i64 total = a.nest.slices * a.num_edges * a.width;
  for_each_grid(ceil_div(total, Elements::kThreads), [&](i64 first, unsigned grid) {
    if (total < (i64)1 << 32) {
      pointwise_kernel<A, u32><<<grid, Elements::kThreads, 0, cuda.stream>>>(a, first, total);
    } else {
      pointwise_kernel<A, u64><<<grid, Elements::kThreads, 0, cuda.stream>>>(a, first, total);
    }
  });
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
