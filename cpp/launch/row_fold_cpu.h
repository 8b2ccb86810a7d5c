// SPDX-License-Identifier: Apache-2.0
// The CPU schedule of a row fold: the tasks of long rows and blocks of short rows side by side,
// then the partials of the longest rows. Threads share rows, features and tasks, never one chain of
// adds.
#pragma once

#include "core/row_items.h"
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

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

template <class Program>
struct RowFoldCpu {
  using Monoid = typename Program::Monoid;
  using T = typename Program::T;
  using A = AccOf<T>;
  const RowFoldArgs& a;

  template <class Shape>
  using Items = typename Program::template Items<Shape::kLanes, Shape::kParts>;

  template <class Shape>
  JI_HD auto fold_here(const RowFoldSlice<T>& s, const CsrView& csr, i64 row, RowRange edges,
                       i64 column) const {
    Items<Shape> items(s, csr, column);
    items.set_row(row);
    return fold_group<Monoid, 1, typename Shape::Value>(edges.begin, edges.count, items);
  }
  template <class Shape>
  __attribute__((noinline)) auto fold_apart(const RowFoldSlice<T>& s, const CsrView& csr, i64 row,
                                            RowRange edges, i64 column) const {
    return fold_here<Shape>(s, csr, row, edges, column);
  }
  // Out of line, since rows and tasks share it and it is most of the code of an op; but for
  // scalars, where a call for each row is felt.
  template <class Shape>
  JI_HD auto fold(const RowFoldSlice<T>& s, const CsrView& csr, i64 row, RowRange edges,
                  i64 column) const {
    if constexpr (Shape::kLanes * Shape::kParts == 1) {
      return fold_here<Shape>(s, csr, row, edges, column);
    } else {
      return fold_apart<Shape>(s, csr, row, edges, column);
    }
  }

  template <class Shape>
  __attribute__((noinline)) void finish(const RowFoldSlice<T>& s, i64 row, i64 column,
                                        const typename Shape::Value& value, i32 count) const {
    Program::Finish::template store<Monoid, T, Shape::kLanes, Shape::kParts>(s, row, column, value,
                                                                             count);
  }

  // Elements that share a weight are tiled by themselves.
  template <class Fn>
  JI_HD void tiles(const Fn& fn) const {
    if (!Program::kGrouped || Program::kOwnWeights || a.group == a.width)
      return for_each_tile<A>(a.width, fn);
    for (i64 first = 0; first < a.width; first += a.group)
      for_each_tile<A>(a.group, [&](auto shape, i64 column) { fn(shape, first + column); });
  }

  // The row of `edges` at position p of the CSR, or -1.
  i32 source_at(const RowFoldSlice<T>& s, const CsrView& csr, i64 p) const {
    if (!Program::kGrouped) return edge_at(csr, (i32)p);
    const i32 source = s.source()[p];
    return (u32)source < (u32)a.num_sources ? source : -1;
  }

  // Edges ahead of the fold whose cache lines are asked for, and lines of each.
  static constexpr i64 kAhead = 16;
  static constexpr i64 kLines = 8;

  // Asks for the edges at positions [from, to) of the CSR; they belong to this row and the next
  // ones.
  i64 ask_for(const RowFoldSlice<T>& s, const CsrView& csr, i64 from, i64 to) const {
    const BitsOf<T>* data = s.edges();
    if (to > csr.num_edges) to = csr.num_edges;
    if (to - from > 4 * kAhead) from = to - 4 * kAhead;
    const i64 bytes = a.width * (i64)sizeof(BitsOf<T>);
    const i64 reach = bytes < 64 * kLines ? bytes : 64 * kLines;
    for (; from < to; ++from) {
      const i32 source = source_at(s, csr, from);
      if (source < 0) continue;
      const u8* at = reinterpret_cast<const u8*>(row_at(data, source, a.edge_bytes));
      for (i64 byte = 0; byte < reach; byte += 64) JI_PREFETCH(at + byte);
    }
    return from;
  }

  // Rows of more than `least` edges, and of at most kLongRow where the list of tasks has the
  // others.
  void rows(const RowFoldSlice<T>& s, i64 first, i64 last, i32 least = -1) const {
    const CsrView csr = s.csr();
    i64 asked = first < last ? row_range(csr, first).begin : 0;
    for (i64 row = first; row < last; ++row) {
      const RowRange edges = row_range(csr, row);
      if (edges.count <= least) continue;
      if (asked < edges.begin) asked = edges.begin;
      if (csr.perm || a.source)
        asked = ask_for(s, csr, asked, (i64)edges.begin + edges.count + kAhead);
      if (!a.no_long_row && edges.count > kLongRow) continue;
      tiles([&](auto shape, i64 column) {
        using Shape = decltype(shape);
        finish<Shape>(s, row, column, fold<Shape>(s, csr, row, edges, column), edges.count);
      });
    }
  }

  void task(const RowFoldSlice<T>& s, i64 t) const {
    const CsrView csr = s.csr();
    const Task task = task_at(csr, t);
    if (task.row < 0 || (!task.whole && t >= a.num_partials)) return;
    tiles([&](auto shape, i64 column) {
      using Shape = decltype(shape);
      const auto value = fold<Shape>(s, csr, task.row, task.edges, column);
      if (task.whole) {
        finish<Shape>(s, task.row, column, value, task.edges.count);
      } else {
        store_partial(s.partials() + t * a.width + column, value);
      }
    });
  }

  void partials(const RowFoldSlice<T>& s, i64 t) const {
    const CsrView csr = s.csr();
    const Task task = task_at(csr, t);
    if (task.row < 0 || task.whole || task.groups == 0 || t + task.groups > a.num_partials) return;
    const i32 count = row_range(csr, task.row).count;
    tiles([&](auto shape, i64 column) {
      using Shape = decltype(shape);
      TreeFold<Monoid, typename Shape::Value> tree;
      for (i64 g = t; g < t + task.groups; ++g)
        tree.push(
            load_partial<A, Shape::kLanes, Shape::kParts>(s.partials() + g * a.width + column));
      finish<Shape>(s, task.row, column, tree.finish(), count);
    });
  }

  // Edges in memory order. A row of one chunk is the sum of its edges as they stand, so each may be
  // added to its row where that lies: edges are read in sequence, and of the rows, which are fewer,
  // the next ones are asked for ahead. Longer rows get a sum of another order, and are folded
  // afterwards as always.

  static constexpr bool kWalks = kSame<Program, SumProgram<Sum, T, Order::kEither>> &&
                                 kSame<BitsOf<T>, A>;  // sums are stored as they are
  static constexpr i64 kWalkedBytes = 128;             // of a row, at most
  static constexpr i64 kWalkers = 3;                   // more threads are faster row by row

  // Whether that pays: it is the work of one thread for each slice.
  bool walks(i64 workers) const {
    if (a.row || a.out_wide || !a.csr.perm || a.csr.num_edges < 1024) return false;
    if (a.width * (i64)sizeof(A) > kWalkedBytes || workers > kWalkers * a.nest.slices) return false;
    i64 in_chunks = 0;
    const CsrView csr = RowFoldSlice<T>{a, 0}.csr();
    for (i64 row = 0; row < csr.num_rows; ++row) {
      const i32 count = row_range(csr, row).count;
      if (count <= kChunk) in_chunks += count;
    }
    return 4 * in_chunks >= 3 * csr.num_edges;
  }

  template <int L>
  static JI_HD void add_to(A* to, const BitsOf<T>* from) {
    Vec<A, L> sum, value;
    memcpy(&sum, to, sizeof(sum));
    memcpy(&value, from, sizeof(value));
    sum = Monoid::combine(sum, value);
    memcpy(to, &sum, sizeof(sum));
  }
  template <int Width>
  void walk_edges(const RowFoldSlice<T>& s) const {
    constexpr i64 kAhead = 24;
    constexpr i64 kNear = 1 << 19;  // bytes of rows that lie near anyhow
    const CsrView csr = s.csr();
    const i64 pitch = a.out_pitch;
    const BitsOf<T>* data = s.edges();
    A* out = s.out_acc();
    for (i64 row = 0; row < csr.num_rows; ++row)
      for (i64 k = 0; k < a.width; ++k) out[row * pitch + k] = Monoid::template identity<A>();
    const auto add = [&](i64 e) {
      const i32 row = csr.ids[e];
      if ((u32)row >= (u32)csr.num_rows) return;
      const auto* from = row_at(data, (i32)e, a.edge_bytes);
      A* to = out + row * pitch;
      if constexpr (Width > 0) return add_to<Width>(to, from);
      i64 k = 0;
      for (; k + 4 <= a.width; k += 4) add_to<4>(to + k, from + k);
      for (; k < a.width; ++k) add_to<1>(to + k, from + k);
    };
    i64 e = 0;
    if (csr.num_rows * pitch * (i64)sizeof(A) > kNear) {
      for (; e + kAhead < csr.num_edges; ++e) {
        const i32 next = csr.ids[e + kAhead];
        JI_PREFETCH(out + ((u32)next < (u32)csr.num_rows ? next : 0) * pitch);
        add(e);
      }
    }
    for (; e < csr.num_edges; ++e) add(e);
  }
  void walk(const RowFoldSlice<T>& s) const {
    switch (a.width) {
      case 1:
        return walk_edges<1>(s);
      case 2:
        return walk_edges<2>(s);
      case 4:
        return walk_edges<4>(s);
      case 8:
        return walk_edges<8>(s);
      case 16:
        return walk_edges<16>(s);
      default:
        return walk_edges<0>(s);
    }
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
    i32 least = -1;
    if constexpr (kWalks) {
      if (walks(workers)) {
        least = kChunk;
        for_each_block(device, slices, [&](i64 slice) { walk(RowFoldSlice<T>{a, slice}); });
      }
    }
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
        rows(s, first, last, least);
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

template <class Monoid, class T>
void run_sums(const Cpu& cpu, const RowFoldArgs& a) {
  RowFoldCpu<SumProgram<Monoid, T, Order::kEither>>{a}.run(cpu);
}

template <class Monoid>
void run_row_fold(const Cpu& cpu, const RowFoldArgs& a) {
  with_type(a.dtype, [&](auto type) { run_sums<Monoid, decltype(type)>(cpu, a); });
}

}  // namespace jax_index::JI_TARGET
