// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "launch/cpu.h"
#include "ops/static_arrays.h"

namespace jax_index::JI_TARGET {

void run(const Cpu& cpu, const StaticArraysArgs& a) {
  constexpr i64 kBlock = 1 << 20;
  for (int k = 0; k < a.count; ++k) {
    const StaticArraysArgs::Copy& copy = a.copies[k];
    for_each_block(cpu, (copy.bytes + kBlock - 1) / kBlock, [&](i64 block) {
      const i64 first = block * kBlock, left = copy.bytes - first;
      memcpy(static_cast<char*>(copy.to) + first, static_cast<const char*>(copy.from) + first,
             (size_t)(left < kBlock ? left : kBlock));
    });
  }
}

}  // namespace jax_index::JI_TARGET
