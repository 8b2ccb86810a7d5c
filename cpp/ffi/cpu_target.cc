// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "ffi/backend.h"

namespace jax_index {
namespace {

CpuTarget detect() {
#if defined(JI_X86_TARGETS)
  CpuTarget best = CpuTarget::kPortable;
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    best = CpuTarget::kAvx2;
  if (best == CpuTarget::kAvx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    best = CpuTarget::kAvx512;
  const char* wanted = std::getenv("JAX_INDEX_CPU_TARGET");
  if (wanted != nullptr) {
    const CpuTarget all[] = {CpuTarget::kPortable, CpuTarget::kAvx2, CpuTarget::kAvx512};
    const char* names[] = {"portable", "avx2", "avx512"};
    for (int k = 0; k < 3; ++k)
      if (std::strcmp(wanted, names[k]) == 0 && all[k] <= best) return all[k];
  }
  return best;
#else
  return CpuTarget::kPortable;
#endif
}

}  // namespace

CpuTarget cpu_target() {
  static const CpuTarget target = detect();
  return target;
}

const char* cpu_target_name() {
  switch (cpu_target()) {
    case CpuTarget::kAvx512:
      return "avx512";
    case CpuTarget::kAvx2:
      return "avx2";
    case CpuTarget::kPortable:
      break;
  }
  return "portable";
}

}  // namespace jax_index
