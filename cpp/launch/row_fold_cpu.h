// SPDX-License-Identifier: Apache-2.0
// The CPU schedule of a row fold: the tasks of long rows and blocks of short rows side by side,
// then the partials of the longest rows. Threads share rows, features and tasks, never one chain of
// adds.
#pragma once

#include "core/row_fold.h"
#include "launch/cpu.h"

namespace jax_index::JI_TARGET {

// Calls fn(Tile size tag, column) over [0, width): four registers at a time, then one, then halves.
template <class A, int L, int K>
struct TileShape {
  static constexpr int kLanes = L;
  static constexpr int kParts = K;
  using Value = Tile<A, L, K>;
};

template <class A, int L, class Fn>
JI_HD void for_each_tail(i64 column, i64 width, const Fn& fn) {
  if (column + L <= width) {
    fn(TileShape<A, L, 1>{}, column);
    column += L;
  }
  if constexpr (L > 1) for_each_tail<A, L / 2>(column, width, fn);
}

template <class A, class Fn>
JI_HD void for_each_tile(i64 width, const Fn& fn) {
  constexpr int kLanes = kRegisterBytes / (int)sizeof(A);
  i64 column = 0;
  for (; column + 4 * kLanes <= width; column += 4 * kLanes) fn(TileShape<A, kLanes, 4>{}, column);
  if (column + 2 * kLanes <= width) {
    fn(TileShape<A, kLanes, 2>{}, column);
    column += 2 * kLanes;
  }
  for_each_tail<A, kLanes>(column, width, fn);
}

template <class Monoid, class T>
struct RowFoldCpu {
  using A = AccOf<T>;
  const RowFoldArgs& a;

  // The edges of a row in one tile of columns.
  template <class Shape>
  struct Items {
    const RowFoldArgs& a;
    const CsrView& csr;
    const BitsOf<T>* edges;  // from the tile's first column on

    const BitsOf<T>* at(i64 edge) const { return edges + edge * a.edge_pitch; }
    i32 index(i32 p) const { return edge_at(csr, p); }
    bool there(i32 edge) const { return edge >= 0; }
    auto fetch(i32 edge) const { return load_raw<T, Shape::kLanes, Shape::kParts>(at(edge)); }
    auto widen(const RawTile<T, Shape::kLanes, Shape::kParts>& raw) const {
      return JI_TARGET::widen<T, Shape::kLanes, Shape::kParts>(raw, a.mini);
    }
  };

  template <class Shape>
  JI_HD auto fold(const CsrView& csr, const BitsOf<T>* data, RowRange edges, i64 column) const {
    return fold_group<Monoid, 1, typename Shape::Value>(edges.begin, edges.count,
                                                        Items<Shape>{a, csr, data + column});
  }

  // Edges ahead of the fold whose cache lines are asked for, and lines of each.
  static constexpr i64 kAhead = 16;
  static constexpr i64 kLines = 8;

  // Asks for the edges at positions [from, to) of the CSR; they belong to this row and the next
  // ones.
  i64 ask_for(const CsrView& csr, const BitsOf<T>* data, i64 from, i64 to) const {
    if (to > csr.num_edges) to = csr.num_edges;
    if (to - from > 4 * kAhead) from = to - 4 * kAhead;
    const i64 bytes = a.width * (i64)sizeof(BitsOf<T>);
    const i64 reach = bytes < 64 * kLines ? bytes : 64 * kLines;
    for (; from < to; ++from) {
      const i32 edge = edge_at(csr, (i32)from);
      if (edge < 0) continue;
      const char* at = reinterpret_cast<const char*>(data + edge * a.edge_pitch);
      for (i64 byte = 0; byte < reach; byte += 64) JI_PREFETCH(at + byte);
    }
    return from;
  }

  void rows(const RowFoldSlice<T>& s, i64 first, i64 last) const {
    const CsrView csr = s.csr();
    const BitsOf<T>* data = s.edges();
    i64 asked = first < last ? row_range(csr, first).begin : 0;
    for (i64 row = first; row < last; ++row) {
      const RowRange edges = row_range(csr, row);
      if (csr.perm) asked = ask_for(csr, data, asked, (i64)edges.begin + edges.count + kAhead);
      const bool empty = edges.count == 0;
      if (!a.no_long_row && edges.count > kLongRow) continue;
      for_each_tile<A>(a.width, [&](auto shape, i64 column) {
        finish_row<Monoid, T>(s, row, column, fold<decltype(shape)>(csr, data, edges, column),
                              empty);
      });
    }
  }

  void task(const RowFoldSlice<T>& s, i64 t) const {
    const CsrView csr = s.csr();
    const Task task = task_at(csr, t);
    if (task.row < 0 || (!task.whole && t >= a.num_partials)) return;
    for_each_tile<A>(a.width, [&](auto shape, i64 column) {
      const auto value = fold<decltype(shape)>(csr, s.edges(), task.edges, column);
      if (task.whole) {
        finish_row<Monoid, T>(s, task.row, column, value, false);
      } else {
        store_partial(s.partials() + t * a.width + column, value);
      }
    });
  }

  void partials(const RowFoldSlice<T>& s, i64 t) const {
    const Task task = task_at(s.csr(), t);
    if (task.row < 0 || task.whole || task.groups == 0 || t + task.groups > a.num_partials) return;
    for_each_tile<A>(a.width, [&](auto shape, i64 column) {
      using Shape = decltype(shape);
      TreeFold<Monoid, typename Shape::Value> tree;
      for (i64 g = t; g < t + task.groups; ++g)
        tree.push(
            load_partial<A, Shape::kLanes, Shape::kParts>(s.partials() + g * a.width + column));
      finish_row<Monoid, T>(s, task.row, column, tree.finish(), false);
    });
  }

  // The first row r with indptr[r] + r >= goal: rows weigh one edge, so that empty rows count too.
  i64 split(const CsrView& csr, i64 goal) const {
    i64 low = 0;
    i64 high = csr.num_rows;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      if (clamp(csr.indptr[middle], 0, (i32)csr.num_edges) + middle < goal) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  void run(const Cpu& cpu) const {
    const i64 slices = a.nest.slices;
    const i64 weight = a.csr.num_edges + a.csr.num_rows;
    const i64 bytes = slices * weight * a.width * (i64)sizeof(T);
    const i64 workers = bytes < kSerialBytes ? 1 : cpu.num_threads;
    i64 blocks = workers == 1 ? 1 : 16 * workers / slices + 1;
    if (blocks > weight / 64 + 1) blocks = weight / 64 + 1;
    const i64 goal = (weight + blocks - 1) / blocks;
    const i64 tasks = a.no_long_row ? 0 : count_tasks();
    const Cpu serial;
    const Cpu& device = bytes < kSerialBytes ? serial : cpu;
    const i64 units = tasks + blocks;
    for_each_block(device, slices * units, [&](i64 unit) {
      const RowFoldSlice<T> s{a, unit / units};
      const i64 k = unit % units;
      if (k < tasks) {
        task(s, k);
      } else {
        // Neighbouring blocks compute the shared boundary alike; the last one ends at num_rows.
        const i64 b = k - tasks;
        const i64 first = b == 0 ? 0 : split(s.csr(), b * goal);
        const i64 last = b + 1 == blocks ? a.csr.num_rows : split(s.csr(), (b + 1) * goal);
        rows(s, first, last);
      }
    });
    const i64 giants = tasks < a.num_partials ? tasks : a.num_partials;
    for_each_block(device, slices * giants,
                   [&](i64 unit) { partials(RowFoldSlice<T>{a, unit / giants}, unit % giants); });
  }

  // Tasks are packed at the front; over a batch of plans the longest list counts.
  i64 count_tasks() const {
    if (a.csr.num_tasks == 0) return 0;
    if (a.nest.slices > 1) return a.csr.num_tasks;
    i64 t = 0;
    while (t < a.csr.num_tasks && a.csr.tasks[2 * t] >= 0) ++t;
    return t;
  }
};

// Calls fn(T{}) for the element type of the call.
template <class Fn>
void with_type(DType dtype, const Fn& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn(float{});
    case DType::kF64:
      return fn(double{});
    case DType::kF16:
      return fn(F16{});
    case DType::kBF16:
      return fn(BF16{});
    case DType::kF8:
      return fn(F8{});
    case DType::kU8:
      return fn(u8{});
    case DType::kU16:
      return fn(u16{});
    case DType::kU32:
      return fn(u32{});
    case DType::kU64:
      return fn(u64{});
  }
}

template <class Monoid>
void run_row_fold(const Cpu& cpu, const RowFoldArgs& a) {
  with_type(a.dtype, [&](auto type) { RowFoldCpu<Monoid, decltype(type)>{a}.run(cpu); });
}

}  // namespace jax_index::JI_TARGET
