// SPDX-License-Identifier: Apache-2.0
// From shapes to loops. Data arrays have one rank; `axis` holds the rows or the edges. A batch of
// plans is a data axis named in `plan_axes`, in the order of the leading axes of the plan's arrays.
// An array that does not vary along such an axis has size 1 there. An array of lower rank (weights)
// has one element for all that lies behind its own axes.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "core/nest.h"
#include "ffi/check.h"

namespace jax_index {

using Dims = xla::ffi::Span<const int64_t>;

struct DataLayout {
  i64 pitch = 0;            // elements from row to row
  std::vector<i64> stride;  // of every data axis; 0 where the array is shared
};

struct Layout {
  std::vector<i64> loops;  // data axes that are looped over
  std::vector<i64> size;   // their sizes
  i64 inner = 0;           // the first data axis of a row
  i64 width = 1;           // elements of one contiguous row
};

inline i64 product(Dims dims, size_t first, size_t last) {
  i64 out = 1;
  for (size_t d = first; d < last; ++d) out *= dims[d];
  return out;
}

// The loops of a call whose result has shape `dims`. What lies behind the row axis, every batch of
// plans and every axis along which an operand is shared is contiguous: one row.
inline Layout layout_of(Dims dims, i64 axis, Dims plan_axes, std::initializer_list<Dims> data) {
  Layout out;
  i64 inner = axis + 1;
  for (i64 p : plan_axes) inner = std::max(inner, p + 1);
  for (const Dims& operand : data)
    for (i64 d = inner; d < (i64)operand.size(); ++d)
      if (operand[d] != dims[d]) inner = d + 1;
  for (i64 d = 0; d < inner; ++d) {
    if (d == axis) continue;
    out.loops.push_back(d);
    out.size.push_back(dims[d]);
  }
  out.inner = inner;
  out.width = product(dims, inner, dims.size());
  return out;
}

// Neighbouring elements of a row that share one element of an array with `rank` axes.
inline i64 group_of(const Layout& layout, Dims dims, size_t rank) {
  return product(dims, std::max((size_t)layout.inner, rank), dims.size());
}

inline DataLayout data_layout(Dims dims, i64 axis, size_t rank = 0) {
  DataLayout out;
  out.stride.resize(std::max(dims.size(), rank));
  i64 step = 1;
  for (i64 d = (i64)dims.size() - 1; d >= 0; --d) {
    out.stride[d] = dims[d] == 1 ? 0 : step;
    if (d == axis) out.pitch = step;
    step *= dims[d];
  }
  return out;
}

// Strides of an array of the plan along the data axes; `inner_size` elements for each plan.
inline std::vector<i64> plan_strides(Dims dims, i64 inner_rank, size_t data_rank, Dims plan_axes) {
  std::vector<i64> out(data_rank, 0);
  i64 step = product(dims, dims.size() - inner_rank, dims.size());
  for (i64 k = (i64)plan_axes.size() - 1; k >= 0; --k) {
    out[plan_axes[k]] = dims[k] == 1 ? 0 : step;
    step *= dims[k];
  }
  return out;
}

// Merges neighbouring loops that every array walks as one. False: too many loops are left.
template <int Arrays>
bool make_nest(const Layout& layout, const std::vector<const std::vector<i64>*>& strides,
               Nest<Arrays>* nest) {
  *nest = {};
  for (size_t k = 0; k < layout.loops.size(); ++k) {
    const i64 size = layout.size[k];
    nest->slices *= size;
    if (size == 1) continue;
    i64 step[Arrays];
    for (int a = 0; a < Arrays; ++a) step[a] = strides[a] ? (*strides[a])[layout.loops[k]] : 0;
    bool merge = nest->rank > 0;
    for (int a = 0; a < Arrays && merge; ++a)
      merge = nest->stride[nest->rank - 1][a] == step[a] * size;
    if (!merge) {
      if (nest->rank == Nest<Arrays>::kMaxLoops) return false;
      nest->size[nest->rank++] = 1;
    }
    nest->size[nest->rank - 1] *= size;
    for (int a = 0; a < Arrays; ++a) nest->stride[nest->rank - 1][a] = step[a];
  }
  return true;
}

// Data and plan shapes that do not belong together.
inline bool plan_fits(Dims dims, i64 inner_rank, Dims plan_axes, Dims data) {
  if (dims.size() != plan_axes.size() + inner_rank) return false;
  for (size_t k = 0; k < plan_axes.size(); ++k) {
    const i64 axis = plan_axes[k];
    if (axis < 0 || axis >= (i64)data.size()) return false;
    if (dims[k] != 1 && dims[k] != data[axis]) return false;
  }
  return true;
}

inline bool data_fits(Dims dims, Dims out, i64 axis) {
  if (dims.size() > out.size() || axis < 0 || axis >= (i64)dims.size()) return false;
  for (size_t d = 0; d < dims.size(); ++d)
    if ((i64)d != axis && dims[d] != out[d] && dims[d] != 1) return false;
  return true;
}

}  // namespace jax_index
