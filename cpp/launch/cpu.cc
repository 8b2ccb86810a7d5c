// SPDX-License-Identifier: Apache-2.0
#include "launch/cpu.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace jax_index {
namespace {

// XLA runs its threads with flush-to-zero and denormals-are-zero on. Both are switched off while a
// body runs, and put back after it.
class IeeeScope {
 public:
#if defined(__x86_64__)
  IeeeScope() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~0x8040u); }
  ~IeeeScope() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeScope() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ & ~(uint64_t(1) << 24)));
  }
  ~IeeeScope() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

struct Loop {
  std::atomic<i64> next{0};
  std::atomic<i64> done{0};
  i64 blocks = 0;
  void (*body)(const void*, i64) = nullptr;
  const void* context = nullptr;
  std::mutex mutex;
  std::condition_variable finished;

  // Takes blocks until none is left. A worker that starts late finds none and touches nothing else.
  void work() {
    i64 block = next.fetch_add(1);
    if (block >= blocks) return;
    IeeeScope ieee;
    i64 mine = 0;
    for (; block < blocks; block = next.fetch_add(1), ++mine) body(context, block);
    if (done.fetch_add(mine) + mine == blocks) {
      std::lock_guard<std::mutex> lock(mutex);
      finished.notify_all();
    }
  }

  void wait() {
    for (int spin = 0; spin < 256; ++spin) {
      if (done.load() == blocks) return;
      std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex);
    finished.wait(lock, [this] { return done.load() == blocks; });
  }
};

}  // namespace

void parallel_for(const Cpu& cpu, i64 blocks, void (*body)(const void* context, i64 block),
                  const void* context) {
  if (blocks <= 0) return;
  i64 helpers = cpu.num_threads - 1;
  if (helpers > blocks - 1) helpers = blocks - 1;
  if (helpers <= 0 || cpu.schedule == nullptr) {
    IeeeScope ieee;
    for (i64 block = 0; block < blocks; ++block) body(context, block);
    return;
  }
  auto loop = std::make_shared<Loop>();
  loop->blocks = blocks;
  loop->body = body;
  loop->context = context;
  for (i64 h = 0; h < helpers; ++h) {
    // The helper owns a share of the loop: it may start after the caller has returned.
    auto* share = new std::shared_ptr<Loop>(loop);
    cpu.schedule(
        cpu.pool,
        [](void* argument) {
          auto* owned = static_cast<std::shared_ptr<Loop>*>(argument);
          (*owned)->work();
          delete owned;
        },
        share);
  }
  loop->work();
  loop->wait();
}

}  // namespace jax_index
