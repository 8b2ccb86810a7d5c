// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold_cpu.h"
#include "ops/index_add.h"

namespace jax_index::JI_TARGET {

void run(const Cpu& cpu, const IndexAddArgs& args) { run_row_fold<IndexAdd>(cpu, args); }

}  // namespace jax_index::JI_TARGET
