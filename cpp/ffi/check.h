// SPDX-License-Identifier: Apache-2.0
// The last line of defence of a handler. The Python layer refuses wrong arguments with a better
// text; these checks only keep a hand-written or outdated program from touching foreign memory.
#pragma once

#include <string>

#include "xla/ffi/api/ffi.h"

namespace jax_index {

template <class Expected, class Got>
xla::ffi::Error refused(const char* op, const char* argument, const Expected& expected,
                        const Got& got) {
  return xla::ffi::Error(xla::ffi::ErrorCode::kInvalidArgument,
                         std::string("jax_index.") + op + ": " + argument + ": expected " +
                             std::string(expected) + ", got " + std::to_string(got));
}

}  // namespace jax_index

#define JI_CHECK(condition, op, argument, expected, got) \
  if (!(condition)) return ::jax_index::refused(op, argument, expected, got)
