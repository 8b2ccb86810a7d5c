// SPDX-License-Identifier: Apache-2.0
#include "launch/cpu.h"
#include "ops/convert.h"

namespace jax_index::JI_TARGET {

void run(const Cpu& cpu, const ConvertArgs& a) {
  constexpr i64 kPerBlock = 1 << 14;
  for_each_block(cpu, (a.count + kPerBlock - 1) / kPerBlock, [&](i64 block) {
    const i64 last = (block + 1) * kPerBlock < a.count ? (block + 1) * kPerBlock : a.count;
    for (i64 i = block * kPerBlock; i < last; ++i) convert_one(a, i);
  });
}

}  // namespace jax_index::JI_TARGET
