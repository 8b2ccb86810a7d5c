// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace jax_index {
namespace {

// fn(worker) on `workers` threads, the caller being one of them.
template <class Fn>
void on_threads(int workers, const Fn& fn) {
  struct Joined : std::vector<std::thread> {
    ~Joined() {
      for (auto& thread : *this) thread.join();
    }
  } others;
  int started = 1;
  try {
    others.reserve((size_t)workers);
    for (; started < workers; ++started) others.emplace_back([&fn, w = started] { fn(w); });
  } catch (const std::exception&) {
    // The machine has no thread to give: the caller does the rest.
  }
  fn(0);
  for (int w = started; w < workers; ++w) fn(w);
}

// Rows longer than a group first, then other long rows; the list ends at row -1.
void fill_tasks(const i32* indptr, i64 num_edges, i64 num_rows, i32* tasks, PlanFacts* facts) {
  i64 t = 0;
  for (int giants = 1; giants >= 0; --giants) {
    for (i64 row = 0; row < num_rows; ++row) {
      const i64 length = indptr[row + 1] - indptr[row];
      if (length <= kLongRow || (length > kGroup) != (giants == 1)) continue;
      for (i64 group = 0; group * kGroup < length; ++group, ++t) {
        tasks[2 * t] = (i32)row;
        tasks[2 * t + 1] = (i32)group;
      }
    }
  }
  facts->no_long_row = t == 0;
  std::fill(tasks + 2 * t, tasks + 2 * max_tasks(num_edges), -1);
}

// How many workers sort: each keeps a counter for every row, and all of them together may take no
// more memory than the plan.
int sorting_workers(i64 num_edges, i64 num_rows, int num_threads) {
  const i64 by_work = num_edges / (1 << 16) + 1;
  const i64 by_memory = (2 * num_edges + num_rows) / (num_rows + 1);
  return (int)std::max<i64>(1, std::min<i64>({by_work, by_memory, (i64)num_threads, 64}));
}

template <class Id>
PlanFacts build(const Id* ids, i64 num_edges, i64 num_rows, bool drop, int num_threads,
                const PlanArrays& out) {
  const int workers = sorting_workers(num_edges, num_rows, num_threads);
  const i64 bins = num_rows + 1;  // the last one holds the dropped edges
  std::unique_ptr<i32[]> counts(new i32[(size_t)(workers * bins)]);
  struct Seen {
    i64 first_bad = -1;
    bool ordered = true;
    i64 first_row = -1;
    i64 last_row = -1;
  };
  std::vector<Seen> seen(workers);
  const auto range = [&](int w) {
    return std::pair<i64, i64>(num_edges * w / workers, num_edges * (w + 1) / workers);
  };

  on_threads(workers, [&](int w) {
    i32* count = counts.get() + w * bins;
    std::fill(count, count + bins, 0);
    Seen s;
    const auto [first, last] = range(w);
    i64 previous = 0;
    for (i64 e = first; e < last; ++e) {
      const Id id = ids[e];
      bool good;
      if constexpr (std::is_signed_v<Id>) {
        good = id >= 0 && (i64)id < num_rows;
      } else {
        good = (u64)id < (u64)num_rows;
      }
      const i64 row = good ? (i64)id : num_rows;
      if (!good && s.first_bad < 0) s.first_bad = e;
      out.ids[e] = good ? (i32)id : -1;
      ++count[row];
      if (e > first && row < previous) s.ordered = false;
      previous = row;
      if (e == first) s.first_row = row;
    }
    s.last_row = previous;
    seen[w] = s;
  });

  PlanFacts facts;
  facts.identity = true;
  i64 previous = 0;
  for (int w = 0; w < workers; ++w) {
    const auto [first, last] = range(w);
    if (first == last) continue;
    if (facts.first_bad < 0) facts.first_bad = seen[w].first_bad;
    if (!seen[w].ordered || seen[w].first_row < previous) facts.identity = false;
    previous = seen[w].last_row;
  }
  if (facts.first_bad >= 0 && !drop) return facts;

  // Each worker's counters become the places where its edges go: by row, then by worker.
  i64 place = 0;
  for (i64 row = 0; row < bins; ++row) {
    if (row < num_rows) out.indptr[row] = (i32)place;
    if (row == num_rows) out.indptr[num_rows] = (i32)place;
    for (int w = 0; w < workers; ++w) {
      i32& count = counts[w * bins + row];
      const i32 here = count;
      count = (i32)place;
      place += here;
    }
  }

  on_threads(workers, [&](int w) {
    i32* next = counts.get() + w * bins;
    const auto [first, last] = range(w);
    if (facts.identity) {
      for (i64 e = first; e < last; ++e) out.perm[e] = (i32)e;
      return;
    }
    for (i64 e = first; e < last; ++e) {
      const i64 row = out.ids[e] < 0 ? num_rows : out.ids[e];
      out.perm[next[row]++] = (i32)e;
    }
  });
  fill_tasks(out.indptr, num_edges, num_rows, out.tasks, &facts);
  return facts;
}

}  // namespace

PlanFacts build_plan(const void* ids, IdType type, i64 num_edges, i64 num_rows, bool drop,
                     int num_threads, const PlanArrays& out) {
  const auto with = [&](auto zero) {
    return build(static_cast<const decltype(zero)*>(ids), num_edges, num_rows, drop, num_threads,
                 out);
  };
  switch (type) {
    case IdType::kI8:
      return with(int8_t{});
    case IdType::kI16:
      return with(int16_t{});
    case IdType::kI32:
      return with(int32_t{});
    case IdType::kI64:
      return with(int64_t{});
    case IdType::kU8:
      return with(uint8_t{});
    case IdType::kU16:
      return with(uint16_t{});
    case IdType::kU32:
      return with(uint32_t{});
    case IdType::kU64:
      return with(uint64_t{});
  }
  return {};
}

PlanFacts build_plan_from_indptr(i64 num_edges, i64 num_rows, const PlanArrays& out) {
  for (i64 row = 0; row < num_rows; ++row)
    for (i64 e = out.indptr[row]; e < out.indptr[row + 1]; ++e) out.ids[e] = (i32)row;
  for (i64 e = 0; e < num_edges; ++e) out.perm[e] = (i32)e;
  PlanFacts facts;
  facts.identity = true;
  fill_tasks(out.indptr, num_edges, num_rows, out.tasks, &facts);
  return facts;
}

}  // namespace jax_index
