// SPDX-License-Identifier: Apache-2.0
// The order of a row's reduction: the contract of equal bits, written once.
//
// The edges of a row, in the caller's own order, are cut from the row's start into chunks of 32.
// A chunk is folded left to right from the identity. The chunk results are cut into 32s and folded
// in the same way, level by level, up to one. The order depends on the row alone: not on the width,
// the dtype, the batch, the number of threads or the device.
//
// A value never met is the identity, and folding a single chunk result once more from the identity
// changes no bit (a sum that starts at +0 is never -0), so a worker may keep levels it does not
// need.
#pragma once

#include "core/monoid.h"

namespace jax_index {

constexpr i64 kChunk = 32;
// Two levels: what one worker or block reduces before anything is written.
constexpr i64 kGroup = kChunk * kChunk;
// A row with more edges than this is "long": it is cut into tasks of kGroup edges.
constexpr i64 kLongRow = 128;
// Levels above a chunk that 2^31 edges can need: 32^6 > 2^26 chunks.
constexpr int kMaxLevels = 6;

}  // namespace jax_index

namespace jax_index::JI_TARGET {

// Folds items [begin, end), at most kChunk of them. `load(p)` gives item p; `InFlight` loads are
// issued before the first of them is used.
template <class Monoid, int InFlight, class Value, class Load>
JI_HD Value fold_chunk(i64 begin, i64 end, const Load& load) {
  using Fold = TileFold<Monoid, Value>;
  Value acc = Fold::identity();
  i64 p = begin;
  for (; p + InFlight <= end; p += InFlight) {
    Value item[InFlight];
    JI_UNROLL
    for (int u = 0; u < InFlight; ++u) item[u] = load(p + u);
    JI_UNROLL
    for (int u = 0; u < InFlight; ++u) acc = Fold::combine(acc, item[u]);
  }
  for (; p < end; ++p) acc = Fold::combine(acc, load(p));
  return acc;
}

// Folds items [begin, end), at most kGroup of them, by two levels.
template <class Monoid, int InFlight, class Value, class Load>
JI_HD Value fold_group(i64 begin, i64 end, const Load& load) {
  using Fold = TileFold<Monoid, Value>;
  i64 stop = begin + kChunk < end ? begin + kChunk : end;
  Value acc = fold_chunk<Monoid, InFlight, Value>(begin, stop, load);
  if (stop == end) return acc;
  acc = Fold::combine(Fold::identity(), acc);
  while (stop < end) {
    const i64 start = stop;
    stop = start + kChunk < end ? start + kChunk : end;
    acc = Fold::combine(acc, fold_chunk<Monoid, InFlight, Value>(start, stop, load));
  }
  return acc;
}

// Folds `count` items (of any level) by as many levels as it takes, in one pass.
template <class Monoid, class Value, class Load>
JI_HD Value fold_tree(i64 count, const Load& load) {
  using Fold = TileFold<Monoid, Value>;
  Value level[kMaxLevels];
  i32 filled[kMaxLevels];
  for (int k = 0; k < kMaxLevels; ++k) {
    level[k] = Fold::identity();
    filled[k] = 0;
  }
  for (i64 p = 0; p < count; ++p) {
    Value carry = load(p);
    for (int k = 0; k < kMaxLevels; ++k) {
      level[k] = Fold::combine(level[k], carry);
      if (++filled[k] < (i32)kChunk || k + 1 == kMaxLevels) break;
      carry = level[k];
      level[k] = Fold::identity();
      filled[k] = 0;
    }
  }
  // What is left on a lower level is the last item of the level above it.
  Value carry = Fold::identity();
  bool some = false;
  for (int k = 0; k < kMaxLevels; ++k) {
    if (some) {
      level[k] = Fold::combine(level[k], carry);
      filled[k] += 1;
    }
    if (filled[k]) {
      carry = level[k];
      some = true;
    }
  }
  return carry;
}

}  // namespace jax_index::JI_TARGET
