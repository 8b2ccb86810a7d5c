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

constexpr i32 kChunk = 32;
// Two levels: what one worker or block reduces before anything is written.
constexpr i32 kGroup = kChunk * kChunk;
// A row with more edges than this is "long": it is cut into tasks of kGroup edges.
constexpr i32 kLongRow = 128;
// Levels above a chunk that 2^31 edges can need: 32^6 > 2^26 chunks.
constexpr int kMaxLevels = 6;

}  // namespace jax_index

namespace jax_index::JI_TARGET {

// The items of a fold. `from(p)` is position p and those behind it; `index(from, u)` reads which
// item stands u positions on, `nothing()` is one that is not there; `there(index)` says whether it
// is one to fold; `fetch(index)` reads it as stored; `add(acc, raw)` folds it. They are apart so
// that a worker has several reads on their way before the first is used, and that the addresses of
// neighbouring positions differ by constants.

// Folds the next `left` positions, at most InFlight, all of whose reads are on their way at once.
template <int InFlight, class Value, class Items, class From>
JI_HD Value fold_batch(Value acc, const Items& items, const From& from, i32 left) {
  using Index = decltype(items.nothing());
  using Raw = decltype(items.fetch(items.nothing()));
  Index index[InFlight];
  Raw raw[InFlight];
  JI_UNROLL
  for (int u = 0; u < InFlight; ++u) {
    index[u] = items.nothing();
    if (u < left) index[u] = items.index(from, u);
  }
  JI_UNROLL
  for (int u = 0; u < InFlight; ++u)
    if (items.there(index[u])) raw[u] = items.fetch(index[u]);
  JI_UNROLL
  for (int u = 0; u < InFlight; ++u)
    if (items.there(index[u])) acc = items.add(acc, raw[u]);
  return acc;
}

// Folds `count` positions from `begin` on, at most kChunk, InFlight reads at a time.
template <class Monoid, int InFlight, class Value, class Items>
JI_HD Value fold_chunk(i32 begin, i32 count, const Items& items) {
  Value acc = TileFold<Monoid, Value>::identity();
  auto from = items.from(begin);
  JI_NO_UNROLL
  for (i32 left = count; left > 0; left -= InFlight) {
    acc = fold_batch<InFlight>(acc, items, from, left);
    from.skip(InFlight);
  }
  return acc;
}

// Folds `count` positions from `begin` on, at most kGroup, by two levels.
template <class Monoid, int InFlight, class Value, class Items>
JI_HD Value fold_group(i32 begin, i32 count, const Items& items) {
  using Fold = TileFold<Monoid, Value>;
  Value acc = Fold::identity();
  JI_NO_UNROLL
  for (i32 k = 0; k < count; k += kChunk) {
    const i32 here = count - k < kChunk ? count - k : kChunk;
    acc = Fold::combine(acc, fold_chunk<Monoid, InFlight, Value>(begin + k, here, items));
  }
  return acc;
}

// The same two levels for items that arrive one by one.
template <class Monoid, class Value>
struct RunningFold {
  using Fold = TileFold<Monoid, Value>;
  Value total = Fold::identity();
  Value chunk = Fold::identity();
  i32 in_chunk = 0;

  JI_HD void add(const Value& value) {
    if (in_chunk == kChunk) {
      total = Fold::combine(total, chunk);
      chunk = Fold::identity();
      in_chunk = 0;
    }
    chunk = Fold::combine(chunk, value);
    ++in_chunk;
  }
  JI_HD Value finish() const { return Fold::combine(total, chunk); }
};

// Folds any number of items of one level, pushed in order, by as many levels as it takes.
template <class Monoid, class Value>
struct TreeFold {
  using Fold = TileFold<Monoid, Value>;
  Value level[kMaxLevels];
  i32 filled[kMaxLevels];

  JI_HD TreeFold() {
    for (int k = 0; k < kMaxLevels; ++k) {
      level[k] = Fold::identity();
      filled[k] = 0;
    }
  }

  JI_HD void push(Value carry) {
    for (int k = 0; k < kMaxLevels; ++k) {
      level[k] = Fold::combine(level[k], carry);
      if (++filled[k] < kChunk || k + 1 == kMaxLevels) return;
      carry = level[k];
      level[k] = Fold::identity();
      filled[k] = 0;
    }
  }

  // What is left on a lower level is the last item of the level above it.
  JI_HD Value finish() const {
    Value carry = Fold::identity();
    bool some = false;
    for (int k = 0; k < kMaxLevels; ++k) {
      if (filled[k] && some)
        carry = Fold::combine(level[k], carry);
      else if (filled[k])
        carry = level[k];
      else if (some)
        carry = Fold::combine(Fold::identity(), carry);
      some = some || filled[k];
    }
    return carry;
  }
};

}  // namespace jax_index::JI_TARGET
