// SPDX-License-Identifier: Apache-2.0
// All that differs between the two modules: the context of a call, and which compiled target runs;
// and how a handler is made.
#pragma once

#include <utility>

#include "ffi/static_arrays.h"
#include "xla/ffi/api/ffi.h"

#if defined(JI_CUDA)
#include "launch/cuda.cuh"
#else
#include "launch/cpu.h"
#endif

namespace jax_index {

namespace ffi = xla::ffi;

#if defined(JI_CUDA)

using Context = ffi::PlatformStream<cudaStream_t>;
using Device = Cuda;
inline Device device_of(cudaStream_t stream) { return Cuda{stream}; }
inline ffi::Error launch_status(const char* op) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return ffi::Error::Success();
  return ffi::Error(
      ffi::ErrorCode::kInternal,
      std::string("jax_index.") + op + ": CUDA launch failed: " + cudaGetErrorString(error));
}
// The handler may be recorded into a CUDA graph: it uses the stream and its operands, nothing else.
#define JI_BIND_HANDLER(name, fn, binding) \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(name, fn, binding, {ffi::Traits::kCmdBufferCompatible})
#define JI_DECLARE_RUN(Args)                                            \
  namespace jax_index::cuda {                                           \
  void run(const Cuda&, const Args&);                                   \
  }                                                                     \
  namespace jax_index {                                                 \
  inline void run_on(const Cuda& d, const Args& a) { cuda::run(d, a); } \
  }
using ContextArgument = cudaStream_t;

#else

using Context = ffi::ThreadPool;
using ContextArgument = ffi::ThreadPool;
using Device = Cpu;
inline Device device_of(ffi::ThreadPool& pool) {
  Cpu cpu;
  cpu.pool = &pool;
  cpu.schedule = [](void* p, void (*task)(void*), void* argument) {
    static_cast<ffi::ThreadPool*>(p)->Schedule([task, argument] { task(argument); });
  };
  cpu.num_threads = static_cast<int>(pool.num_threads());
  return cpu;
}
inline ffi::Error launch_status(const char*) { return ffi::Error::Success(); }
#define JI_BIND_HANDLER(name, fn, binding) XLA_FFI_DEFINE_HANDLER_SYMBOL(name, fn, binding)

// The widest instruction set of this machine, asked once; JAX_INDEX_CPU_TARGET names another.
enum class CpuTarget { kPortable, kAvx2, kAvx512 };
CpuTarget cpu_target();
const char* cpu_target_name();

#if defined(JI_X86_TARGETS)
#define JI_DECLARE_RUN(Args)                        \
  namespace jax_index {                             \
  namespace portable {                              \
  void run(const Cpu&, const Args&);                \
  }                                                 \
  namespace avx2 {                                  \
  void run(const Cpu&, const Args&);                \
  }                                                 \
  namespace avx512 {                                \
  void run(const Cpu&, const Args&);                \
  }                                                 \
  inline void run_on(const Cpu& d, const Args& a) { \
    switch (cpu_target()) {                         \
      case CpuTarget::kAvx512:                      \
        return avx512::run(d, a);                   \
      case CpuTarget::kAvx2:                        \
        return avx2::run(d, a);                     \
      case CpuTarget::kPortable:                    \
        return portable::run(d, a);                 \
    }                                               \
  }                                                 \
  }
#else
#define JI_DECLARE_RUN(Args)                                               \
  namespace jax_index {                                                    \
  namespace portable {                                                     \
  void run(const Cpu&, const Args&);                                       \
  }                                                                        \
  inline void run_on(const Cpu& d, const Args& a) { portable::run(d, a); } \
  }
#endif

#endif

// The symbol `name` that is registered runs `fn`, an op, with static operands in their places.
#define JI_HANDLER(name, fn, binding)                            \
  JI_BIND_HANDLER(name##_of_operands, fn, binding);              \
  extern "C" XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) {     \
    return with_static_operands(#fn, name##_of_operands, frame); \
  }                                                              \
  static_assert(true)

}  // namespace jax_index
