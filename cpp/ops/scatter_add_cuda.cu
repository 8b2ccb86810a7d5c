// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold.cuh"
#include "ops/scatter_add.h"

namespace jax_index::JI_TARGET {

void run(const Cuda& cuda, const ScatterAddArgs& args) { run_row_fold<ScatterAdd>(cuda, args); }

}  // namespace jax_index::JI_TARGET
