// SPDX-License-Identifier: Apache-2.0
// How work spreads over XLA's CPU threads. The caller takes part, so a call makes progress even
// when every pool thread is busy or waits.
#pragma once

#include "core/hd.h"

namespace jax_index {

struct Cpu {
  void* pool = nullptr;  // XLA's thread pool
  // Schedules `task(argument)` on the pool.
  void (*schedule)(void* pool, void (*task)(void*), void* argument) = nullptr;
  int num_threads = 1;
};

// body(context, block) for every block in [0, blocks), in any order, on any thread, under IEEE
// arithmetic: subnormals are kept although XLA's threads flush them.
void parallel_for(const Cpu& cpu, i64 blocks, void (*body)(const void* context, i64 block),
                  const void* context);

// Work of fewer bytes than this stays on the calling thread.
constexpr i64 kSerialBytes = 1 << 16;

}  // namespace jax_index

namespace jax_index::JI_TARGET {

// The number of lanes of T in a register of this target.
#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif

// fn(block) for every block in [0, blocks).
template <class Fn>
void for_each_block(const Cpu& cpu, i64 blocks, const Fn& fn) {
  parallel_for(
      cpu, blocks,
      [](const void* context, i64 block) { (*static_cast<const Fn*>(context))(block); }, &fn);
}

}  // namespace jax_index::JI_TARGET
