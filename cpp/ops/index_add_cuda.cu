// SPDX-License-Identifier: Apache-2.0
#include "launch/row_fold.cuh"
#include "ops/index_add.h"

namespace jax_index::JI_TARGET {

void run(const Cuda& cuda, const IndexAddArgs& args) { run_row_fold<IndexAdd>(cuda, args); }

}  // namespace jax_index::JI_TARGET
