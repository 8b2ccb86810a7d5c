// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold_cpu.h"
#include "ops/index_add.h"

namespace jax_index::JI_TARGET {

// Compiled once, with scatter_add.
extern template void run_row_fold<Sum>(const Cpu&, const RowFoldArgs&);

void run(const Cpu& device, const IndexAddArgs& args) { run_row_fold<Sum>(device, args); }

}  // namespace jax_index::JI_TARGET
