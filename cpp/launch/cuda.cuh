// SPDX-License-Identifier: Apache-2.0
// The context of a CUDA call, and the launch parameters of every kernel, in one place.
#pragma once

#include <cuda_runtime_api.h>

#include "core/hd.h"

namespace jax_index {

struct Cuda {
  cudaStream_t stream = nullptr;
};

// Rows of several words: a thread owns one word of a row. Accumulators: bytes of a thread's sum.
template <int Accumulators>
struct WideRows {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = Accumulators > 8 ? 10 : 12;
  static constexpr int kLoads = 4;          // edges whose words a thread has on their way
  static constexpr int kTaskBlocks = 1056;  // blocks that share the long rows, for each slice
};

// The same where rows of another array are read and multiplied by weights: more indices on their
// way.
template <int Accumulators>
struct ProductRows : WideRows<Accumulators> {
  static constexpr int kMinBlocks = Accumulators > 16 ? 6 : 8;
  static constexpr i64 kRowsOfTeam = 8;        // at most
  static constexpr i64 kRowsBesideLong = 4;    // where neighbouring rows may be heavy
  static constexpr i64 kBusyWarps = 132 * 16;  // fewer leave a large GPU idle
};

// Rows of few words: a warp stages the words of its rows in shared memory.
struct NarrowRows {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 8;
  static constexpr int kMaxLanes = 2;       // words of a row, at most; one where ids are sorted
  static constexpr int kStageBytes = 4096;  // of a warp
  static constexpr int kLoads = 8;          // words that a thread has on their way
  static constexpr int kTaskBlocks = 1056;
};

// Rows whose tasks left partials. Few partials: a thread folds them; more: a block.
struct Partials {
  static constexpr int kThreads = 256;
  static constexpr int kColumns = 8;    // that one block takes
  static constexpr int kResults = 512;  // chunk results of a column that it keeps
  static constexpr int kLoads = 8;
};

// Gather by edge: a thread copies one word of kEdges edges.
struct GatherEdges {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 6;
  static constexpr int kEdges = 4;
};

// Gather by row: a thread reads one word of a row and writes it to every edge of the row.
struct GatherRows {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 10;
  static constexpr int kEdges = 4;           // edges whose places a thread looks up at once
  static constexpr int kTaskBlocks = 528;    // that share the long rows and the dropped edges
  static constexpr i64 kMinWidth = 256;      // bytes of a row from which on it is the faster way
  static constexpr i64 kMinBytes = 1 << 26;  // of the result
};

// Dots over the features of two rows: a team of threads for each.
struct Dots {
  static constexpr int kThreads = 128;
  static constexpr int kDots = 2;  // that a team has on their way
};

// The same for edges that share a row: a team takes kSpan neighbours of the CSR.
struct DotSpans {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 5;
  static constexpr int kSpan = 16;
  template <int Steps>  // words of a row that a thread holds
  static constexpr int kDots = Steps > 2 ? 2 : 4;
};

// Elementwise arithmetic: a thread for each element.
struct Elements {
  static constexpr int kThreads = 256;
};

constexpr i64 kMaxGrid = 0x7fffffff;

inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// fn(first block, grid) for as many launches as `blocks` needs.
template <class Fn>
void for_each_grid(i64 blocks, const Fn& fn) {
  for (i64 first = 0; first < blocks; first += kMaxGrid)
    fn(first, (unsigned)(blocks - first < kMaxGrid ? blocks - first : kMaxGrid));
}

}  // namespace jax_index
