// SPDX-License-Identifier: Apache-2.0
// The only file that asks which compiler runs.
//
// Everything below `namespace jax_index::JI_TARGET` is compiled once per target (portable, avx2,
// avx512, cuda). The namespace keeps the copies apart: a function compiled for AVX-512 must never
// be the one that the linker keeps for a machine without it.
#pragma once

#include <cstdint>

#ifndef JI_TARGET
#define JI_TARGET portable
#endif

#if defined(__CUDACC__)
#define JI_HD __host__ __device__ __forceinline__
#define JI_UNROLL _Pragma("unroll")
// Unrolling beyond what the source says costs registers, and with them the threads that hide
// latency.
#define JI_NO_UNROLL _Pragma("unroll 1")
#else
#define JI_NO_UNROLL
#define JI_HD inline __attribute__((always_inline))
#define JI_UNROLL _Pragma("GCC unroll 16")
#endif

// Asks for a cache line ahead of its use; on the GPU other warps hide the latency instead.
#if defined(__CUDA_ARCH__)
#define JI_PREFETCH(address) ((void)0)
#else
#define JI_PREFETCH(address) __builtin_prefetch(address)
#endif

namespace jax_index {
using i32 = int32_t;
using i64 = int64_t;
using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
}  // namespace jax_index
