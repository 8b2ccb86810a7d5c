// SPDX-License-Identifier: Apache-2.0
// gather: out[e] = x[ids[e]], or the fill value where ids[e] names no row. The adjoint of
// scatter_add. Bytes are moved, never read as numbers, so one kernel serves every dtype.
//
// This op is the smallest and the template for others. Its four files: this one (arguments and the
// body, host and device), gather_cpu.cc and gather_cuda.cu (who computes what), gather_ffi.cc (from
// XLA's buffers to the arguments).
#pragma once

#include "core/csr.h"
#include "core/nest.h"

namespace jax_index {

struct GatherArgs {
  enum Array { kX, kIds, kOut, kIndptr, kPerm, kTasks, kArrays };
  const void* x = nullptr;       // [slices, num_rows, width]
  void* out = nullptr;           // [slices, num_edges, width]
  alignas(16) u8 fill[16] = {};  // the fill element, repeated
  CsrView csr;  // of slice 0: the same edges by row, for back ends that read each row once
  bool no_long_row = false;
  i64 width = 0;    // bytes; contiguous
  i64 x_pitch = 0;  // bytes from row to row
  i64 out_pitch = 0;
  Nest<kArrays> nest;  // strides of x and out in bytes, of the plan in elements
};

}  // namespace jax_index

namespace jax_index::JI_TARGET {

struct GatherSlice {
  const GatherArgs& a;
  i64 slice;

  JI_HD i64 at(int array) const { return offset_of(a.nest, slice, array); }
  JI_HD const u8* x() const { return static_cast<const u8*>(a.x) + at(GatherArgs::kX); }
  JI_HD const i32* ids() const { return a.csr.ids + at(GatherArgs::kIds); }
  JI_HD u8* out() const { return static_cast<u8*>(a.out) + at(GatherArgs::kOut); }
  JI_HD CsrView csr() const {
    CsrView csr = a.csr;
    csr.indptr += at(GatherArgs::kIndptr);
    if (csr.perm) csr.perm += at(GatherArgs::kPerm);
    csr.tasks += at(GatherArgs::kTasks);
    return csr;
  }
};

}  // namespace jax_index::JI_TARGET
