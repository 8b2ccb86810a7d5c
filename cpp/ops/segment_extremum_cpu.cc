// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold_cpu.h"
#include "ops/segment_extremum.h"

namespace jax_index::JI_TARGET {

void run(const Cpu& cpu, const SegmentExtremumArgs& a) {
  switch (a.bytes) {
    case 1:
      return run_sums<Largest, Key<u8>>(cpu, a);
    case 2:
      return run_sums<Largest, Key<u16>>(cpu, a);
    case 8:
      return run_sums<Largest, Key<u64>>(cpu, a);
    default:
      return run_sums<Largest, Key<u32>>(cpu, a);
  }
}

}  // namespace jax_index::JI_TARGET
