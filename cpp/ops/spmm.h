// SPDX-License-Identifier: Apache-2.0
// spmm: out[i] = sum over the edges e of row i of w[e] x[source of e], the product of a sparse
// matrix and a dense one; without weights the plain sum. Rows of x are read where they are needed,
// so no array of the size of the edges is made. With a divisor of each row and group the sum is
// divided by it: attention's normalisation. Complex numbers are multiplied as core/math.h says;
// their plain sum is that of their parts.
#pragma once

#include "core/row_fold.h"

namespace jax_index {

struct SpmmArgs : RowFoldArgs {};

}  // namespace jax_index
