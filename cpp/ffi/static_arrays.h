// SPDX-License-Identifier: Apache-2.0
// Arrays that a program names by a key instead of carrying them: static plans.
//
// A call with the attribute `static` takes some of its operands from a table of this module, in
// place of the empty arrays that the program passes there: "2=KEY/0;3=KEY/1" says that operand 2 is
// array 0 of KEY and operand 3 array 1. A key is put by Python before the program is compiled and
// dropped when its last owner is gone. Handlers see whole operands and know nothing of this.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace jax_index {

struct StaticArray {
  const int32_t* host;  // kept alive by the caller until static_drop returns
  std::vector<int64_t> dims;
};

// Lets the key mean these arrays, whatever it meant before, and returns the number of this meaning.
int64_t static_put(const std::string& key, std::vector<StaticArray> arrays);

// Names copies of the arrays on a device that the caller keeps alive until static_drop returns.
void static_place(const std::string& key, int device, const std::vector<uintptr_t>& pointers);

// Ends a meaning: calls no longer find its arrays, and returns once none reads them; frees the
// copies that were made here. A later meaning of the same key stays.
void static_drop(int64_t number);

// (device, bytes) of every copy that was made here.
std::vector<std::pair<int, int64_t>> static_copies(const std::string& key);

// Runs a handler with the static operands of its call in their places.
XLA_FFI_Error* with_static_operands(const char* op, XLA_FFI_Handler* handler,
                                    XLA_FFI_CallFrame* frame);

// The initialize stage of every handler: copies static operands to the device of the call, which
// must not happen while a CUDA graph is recorded.
extern "C" XLA_FFI_Error* static_initialize(XLA_FFI_CallFrame* frame);

}  // namespace jax_index
