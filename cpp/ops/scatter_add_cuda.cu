// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold.cuh"
#include "ops/scatter_add.h"

namespace jax_index::JI_TARGET {

template void run_row_fold<Sum>(const Cuda&, const RowFoldArgs&);

void run(const Cuda& device, const ScatterAddArgs& args) { run_row_fold<Sum>(device, args); }

}  // namespace jax_index::JI_TARGET
