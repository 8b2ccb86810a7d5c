// SPDX-License-Identifier: Apache-2.0
// From XLA's element types to ours.
#pragma once

#include "core/row_fold.h"
#include "xla/ffi/api/ffi.h"

namespace jax_index {

using XlaType = xla::ffi::DataType;

inline i64 item_bytes(XlaType type) { return (i64)xla::ffi::ByteWidth(type); }

// False where `type` is no float of at most 8 bits.
inline bool mini_float(XlaType type, MiniFloat* out) {
  switch (type) {
    case XlaType::F8E5M2:
      *out = {5, 2, 15, MiniFloat::kIeee};
      return true;
    case XlaType::F8E4M3:
      *out = {4, 3, 7, MiniFloat::kIeee};
      return true;
    case XlaType::F8E3M4:
      *out = {3, 4, 3, MiniFloat::kIeee};
      return true;
    case XlaType::F8E4M3FN:
      *out = {4, 3, 7, MiniFloat::kFn};
      return true;
    case XlaType::F8E4M3FNUZ:
      *out = {4, 3, 8, MiniFloat::kFnuz};
      return true;
    case XlaType::F8E5M2FNUZ:
      *out = {5, 2, 16, MiniFloat::kFnuz};
      return true;
    case XlaType::F8E4M3B11FNUZ:
      *out = {4, 3, 11, MiniFloat::kFnuz};
      return true;
    case XlaType::F8E8M0FNU:
      *out = {8, 0, 127, MiniFloat::kScale};
      return true;
    default:
      return false;
  }
}
// A four-bit float arrives one to a byte, with this layout named by an attribute.
inline constexpr MiniFloat kFloat4 = {2, 1, 1, MiniFloat::kFinite};

// How the elements of a sum are read. `parts` is 2 for complex numbers, which are summed part by
// part; signed integers are summed as unsigned ones, so that overflow wraps.
struct SumType {
  DType dtype;
  MiniFloat mini;
  i64 parts;
};

inline bool sum_type(XlaType type, SumType* out) {
  *out = {DType::kF32, {}, 1};
  switch (type) {
    case XlaType::S8:
    case XlaType::U8:
      out->dtype = DType::kU8;
      return true;
    case XlaType::S16:
    case XlaType::U16:
      out->dtype = DType::kU16;
      return true;
    case XlaType::S32:
    case XlaType::U32:
      out->dtype = DType::kU32;
      return true;
    case XlaType::S64:
    case XlaType::U64:
      out->dtype = DType::kU64;
      return true;
    case XlaType::F16:
      out->dtype = DType::kF16;
      return true;
    case XlaType::BF16:
      out->dtype = DType::kBF16;
      return true;
    case XlaType::F32:
      return true;
    case XlaType::F64:
      out->dtype = DType::kF64;
      return true;
    case XlaType::C64:
      out->parts = 2;
      return true;
    case XlaType::C128:
      out->dtype = DType::kF64;
      out->parts = 2;
      return true;
    default:
      out->dtype = DType::kF8;
      return mini_float(type, &out->mini);
  }
}

inline i64 accumulator_bytes(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return 1;
    case DType::kU16:
      return 2;
    case DType::kF64:
    case DType::kU64:
      return 8;
    default:
      return 4;
  }
}

}  // namespace jax_index
