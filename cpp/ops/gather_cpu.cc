// SPDX-License-Identifier: Apache-2.0
#include "launch/cpu.h"
#include "ops/gather.h"

namespace jax_index::JI_TARGET {
namespace {

// Rows ahead of the one that is copied whose cache lines are asked for.
constexpr i64 kAhead = 16;

// Width is the row's bytes where it is known to the compiler, else 0.
template <int Width>
void copy_edges(const GatherSlice& s, i64 first, i64 last) {
  const GatherArgs& a = s.a;
  const u8* x = s.x();
  const i32* ids = s.ids();
  u8* out = s.out();
  // Where edge e reads from, or null for the fill value.
  const auto source = [&](i64 e) -> const u8* {
    const i64 id = ids[e];
    return (u64)id < (u64)a.csr.num_rows ? x + id * a.x_pitch : nullptr;
  };
  const i64 width = Width ? Width : a.width;
  for (i64 e = first; e < last; ++e) {
    if (e + kAhead < last) {
      const u8* ahead = source(e + kAhead);
      if (ahead) JI_PREFETCH(ahead);
    }
    const u8* from = source(e);
    u8* to = out + e * a.out_pitch;
    if (from) {
      memcpy(to, from, width);
    } else {
      i64 done = 0;
      for (; done + 16 <= width; done += 16) memcpy(to + done, a.fill, 16);
      memcpy(to + done, a.fill, width - done);
    }
  }
}

void copy_block(const GatherSlice& s, i64 first, i64 last) {
  switch (s.a.width) {
    case 1:
      return copy_edges<1>(s, first, last);
    case 2:
      return copy_edges<2>(s, first, last);
    case 4:
      return copy_edges<4>(s, first, last);
    case 8:
      return copy_edges<8>(s, first, last);
    case 16:
      return copy_edges<16>(s, first, last);
    case 32:
      return copy_edges<32>(s, first, last);
    case 64:
      return copy_edges<64>(s, first, last);
    case 128:
      return copy_edges<128>(s, first, last);
    case 256:
      return copy_edges<256>(s, first, last);
    default:
      return copy_edges<0>(s, first, last);
  }
}

}  // namespace

void run(const Cpu& cpu, const GatherArgs& a) {
  const i64 bytes = a.nest.slices * a.csr.num_edges * (a.width + 4);
  i64 blocks = bytes < kSerialBytes ? 1 : 16 * (i64)cpu.num_threads / a.nest.slices + 1;
  const i64 per_block = (a.csr.num_edges + blocks - 1) / blocks;
  blocks = (a.csr.num_edges + per_block - 1) / per_block;
  const Cpu serial;
  for_each_block(bytes < kSerialBytes ? serial : cpu, a.nest.slices * blocks, [&](i64 unit) {
    const GatherSlice s{a, unit / blocks};
    const i64 first = unit % blocks * per_block;
    const i64 last = first + per_block < a.csr.num_edges ? first + per_block : a.csr.num_edges;
    copy_block(s, first, last);
  });
}

}  // namespace jax_index::JI_TARGET
