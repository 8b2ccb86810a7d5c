// SPDX-License-Identifier: Apache-2.0
// What the edges of a row contribute to its fold: the arithmetic of every row op, for host and
// device. A program names the fold: how values meet (Monoid), the element type, the items in a tile
// of columns, and how a row ends.
#pragma once

#include "core/row_fold.h"

namespace jax_index::JI_TARGET {

// Whether the perm of a plan is read: known to the compiler, so that a GPU thread has its loads
// together, or found out at run time, which saves compiling a program twice.
enum class Order { kIdentity, kPermuted, kEither };

// The edges at position p and those behind it. Plans may hold anything: they are checked only when
// all of a batch are on their way.
template <Order order>
struct EdgesFrom {
  const i32* perm = nullptr;
  i32 p;

  JI_HD EdgesFrom(const i32* base, i32 p) : p(p) {
    if (order == Order::kPermuted || (order == Order::kEither && base)) perm = base + p;
  }
  JI_HD void skip(int count) {
    p += count;
    if (order == Order::kPermuted || (order == Order::kEither && perm)) perm += count;
  }
  JI_HD i32 index(int u) const {
    if constexpr (order == Order::kPermuted) return load_index(perm + u);
    if constexpr (order == Order::kEither) return perm ? load_index(perm + u) : p + u;
    return p + u;
  }
};

// The values themselves.
template <class Monoid_, class T_, Order order>
struct SumProgram {
  using Monoid = Monoid_;
  using T = T_;
  using Finish = AddFinish;
  static constexpr bool kGrouped = false;
  static constexpr bool kOwnWeights = false;

  template <int L, int K>
  struct Items {
    using Value = Tile<AccOf<T>, L, K>;
    using Raw = RawTile<T, L, K>;
    const BitsOf<T>* data;  // from the tile's first column on
    const i32* perm;
    const RowFoldArgs& a;

    JI_HD Items(const RowFoldSlice<T>& s, const CsrView& csr, i64 column)
        : data(s.edges() + column), perm(csr.perm), a(s.a) {}
    JI_HD void set_row(i64) {}
    JI_HD EdgesFrom<order> from(i32 p) const { return {perm, p}; }
    JI_HD i32 index(const EdgesFrom<order>& from, int u) const { return from.index(u); }
    JI_HD i32 nothing() const { return -1; }
    JI_HD bool there(i32 edge) const { return (u32)edge < (u32)a.csr.num_edges; }
    JI_HD Raw fetch(i32 edge) const { return load_edge<T, L, K>(row_at(data, edge, a.edge_bytes)); }
    JI_HD Value add(const Value& acc, const Raw& raw) const {
      return TileFold<Monoid, Value>::combine(acc, widen<T, L, K>(raw, a.mini));
    }
  };
};

// Rows of another array, times a weight of the edge: fma(w, x, sum). The weights of a tile are one
// number, or, where every element has its own, a tile.
template <class T_, bool Weighted, Order order, bool OwnWeights = false>
struct ProductProgram {
  using Monoid = Sum;
  using T = T_;
  using Finish = DivideFinish;
  static constexpr bool kGrouped = true;
  static constexpr bool kOwnWeights = OwnWeights;
  using A = AccOf<T>;

  struct Index {
    i32 source;
    i32 edge;
  };

  template <int L, int K>
  struct Items {
    using Value = Tile<A, L, K>;
    struct Raw {
      RawTile<T, L, K> x;
      Tile<A, OwnWeights ? L : 1, OwnWeights ? K : 1> w;
    };
    struct From {
      const i32* source;
      EdgesFrom<order> edges;
      JI_HD void skip(int count) {
        source += count;
        if constexpr (Weighted) edges.skip(count);
      }
    };
    const BitsOf<T>* data;
    const i32* perm;
    const i32* source;
    const u8* weights;  // of the tile
    const RowFoldArgs& a;

    JI_HD Items(const RowFoldSlice<T>& s, const CsrView& csr, i64 column)
        : data(s.edges() + column), perm(csr.perm), source(s.source()), weights(nullptr), a(s.a) {
      if constexpr (Weighted)
        weights = s.other_at(OwnWeights ? column : group_of_column(s.a, column));
    }
    JI_HD void set_row(i64) {}
    JI_HD From from(i32 p) const { return {source + p, {perm, p}}; }
    JI_HD Index index(const From& from, int u) const {
      Index out = {load_index(from.source + u), 0};
      if constexpr (Weighted) out.edge = from.edges.index(u);
      return out;
    }
    JI_HD Index nothing() const { return {-1, -1}; }
    JI_HD bool there(Index i) const {
      return (u32)i.source < (u32)a.num_sources &&
             (!Weighted || (u32)i.edge < (u32)a.csr.num_edges);
    }
    // Where an edge has one weight, its source and that weight may stand for its index.
    struct SourceAndWeight {
      i32 source;
      A weight;
      JI_HD SourceAndWeight() {}
      JI_HD SourceAndWeight(Index i) : source(i.source), weight(0) {}
    };
    JI_HD SourceAndWeight source_and_weight(Index i) const {
      SourceAndWeight out(nothing());
      if (there(i)) {
        out.source = i.source;
        out.weight =
            load_either<T>(row_at(weights, i.edge, a.other_bytes), 0, a.other_wide, a.mini);
      }
      return out;
    }
    JI_HD bool there(const SourceAndWeight& i) const { return i.source >= 0; }
    JI_HD Raw fetch(const SourceAndWeight& i) const {
      Raw raw;
      raw.x = load_shared<T, L, K>(row_at(data, i.source, a.edge_bytes));
      raw.w.head = Vec<A, OwnWeights ? L : 1>{} + i.weight;
      return raw;
    }
    JI_HD Raw fetch(Index i) const {
      Raw raw;
      raw.x = load_shared<T, L, K>(row_at(data, i.source, a.edge_bytes));
      if constexpr (Weighted) {
        const u8* w = row_at(weights, i.edge, a.other_bytes);
        if constexpr (OwnWeights) {
          raw.w = load_tile_either<T, L, K>(w, 0, a.other_wide, a.mini);
        } else {
          raw.w.head = load_either<T>(w, 0, a.other_wide, a.mini);
        }
      }
      return raw;
    }
    JI_HD Value add(const Value& acc, const Raw& raw) const {
      const Value x = widen<T, L, K>(raw.x, a.mini);
      if constexpr (!Weighted) {
        return TileFold<Sum, Value>::combine(acc, x);
      } else if constexpr (OwnWeights) {
        return tile_zip3(raw.w, x, acc, [](Vec<A, L> w, Vec<A, L> v, Vec<A, L> sum) {
          return fma<A, L>(w, v, sum);
        });
      } else {
        const Vec<A, L> w = Vec<A, L>{} + raw.w.head;
        return tile_zip(x, acc, [&](Vec<A, L> v, Vec<A, L> sum) { return fma<A, L>(w, v, sum); });
      }
    }
  };
};

// The same of complex numbers, each a pair of neighbouring elements.
template <class T_, Order order, bool OwnWeights = false>
struct ComplexProgram {
  using Monoid = Sum;
  using T = T_;
  using Finish = DivideFinish;
  static constexpr bool kGrouped = true;
  static constexpr bool kOwnWeights = OwnWeights;
  using A = AccOf<T>;
  using ProductsOf = ProductProgram<T, true, order>;
  using Index = typename ProductsOf::Index;

  template <int L, int K>
  struct Items {
    using Value = Tile<A, L, K>;
    static constexpr int kLanes = OwnWeights ? L : 1;
    static constexpr int kParts = OwnWeights ? K : 2;
    struct Raw {
      RawTile<T, L, K> x;
      Tile<A, kLanes, kParts> w;
    };
    using Products = typename ProductsOf::template Items<L, K>;
    Products products;

    JI_HD Items(const RowFoldSlice<T>& s, const CsrView& csr, i64 column)
        : products(s, csr, column) {
      products.weights = s.other_at(OwnWeights ? column : 2 * group_of_column(s.a, column));
    }
    JI_HD void set_row(i64) {}
    JI_HD auto from(i32 p) const { return products.from(p); }
    JI_HD Index index(const typename Products::From& from, int u) const {
      return products.index(from, u);
    }
    JI_HD Index nothing() const { return products.nothing(); }
    JI_HD bool there(Index i) const { return products.there(i); }
    JI_HD Raw fetch(Index i) const {
      const RowFoldArgs& a = products.a;
      const u8* weight = row_at(products.weights, i.edge, a.other_bytes);
      Raw raw;
      raw.x = load_shared<T, L, K>(row_at(products.data, i.source, a.edge_bytes));
      raw.w = load_tile<T, kLanes, kParts>(reinterpret_cast<const BitsOf<T>*>(weight), a.mini);
      return raw;
    }
    JI_HD Value add(const Value& acc, const Raw& raw) const {
      const Value x = widen<T, L, K>(raw.x, products.a.mini);
      if constexpr (OwnWeights) {
        return complex_fma<A, L, K>(raw.w, x, acc);
      } else {
        return complex_fma<A, L, K>(raw.w.head, raw.w.tail.head, x, acc);
      }
    }
  };
};

// A function of z = x + r, x a row of another array and r the row's own value, times a weight of
// the edge: leaky_relu(z) or its slope. The sums in the gradients of additive attention.
template <class T_>
struct AdditiveProgram {
  using Monoid = Sum;
  using T = T_;
  using Finish = MeanFinish;
  static constexpr bool kGrouped = true;
  static constexpr bool kOwnWeights = false;
  using A = AccOf<T>;
  using ProductsOf = ProductProgram<T, true, Order::kEither>;
  using Index = typename ProductsOf::Index;

  template <int L, int K>
  struct Items {
    using Value = Tile<A, L, K>;
    using Products = typename ProductsOf::template Items<L, K>;
    using Raw = typename Products::Raw;
    Products products;
    i64 own;  // of the tile in the row operand
    Value r;

    JI_HD Items(const RowFoldSlice<T>& s, const CsrView& csr, i64 column)
        : products(s, csr, column), own(s.at(RowFoldArgs::kRow) + column), r{} {}
    JI_HD void set_row(i64 row) {
      const RowFoldArgs& a = products.a;
      r = load_tile_either<T, L, K>(a.row, own + row * a.row_pitch, a.row_wide, a.mini);
    }
    JI_HD auto from(i32 p) const { return products.from(p); }
    JI_HD Index index(const typename Products::From& from, int u) const {
      return products.index(from, u);
    }
    JI_HD Index nothing() const { return products.nothing(); }
    JI_HD bool there(Index i) const { return products.there(i); }
    JI_HD Raw fetch(Index i) const { return products.fetch(i); }
    JI_HD Value add(const Value& acc, const Raw& raw) const {
      using V = Vec<A, L>;
      const A slope = (A)products.a.slope;
      const bool values = products.a.additive == 2;
      const V w = V{} + raw.w.head;
      return tile_zip3(widen<T, L, K>(raw.x, products.a.mini), r, acc, [&](V x, V mine, V sum) {
        const V z = x + mine;
        return fma<A, L>(w, leaky_slope<A, L>(z, values ? z : V{} + A(1), slope), sum);
      });
    }
  };
};

// What RowMap says.
template <class T_>
struct MapProgram {
  using Monoid = Sum;
  using T = T_;
  using Finish = MeanFinish;
  static constexpr bool kGrouped = false;
  static constexpr bool kOwnWeights = false;
  using A = AccOf<T>;

  template <int L, int K>
  struct Items {
    using Value = Tile<A, L, K>;
    struct Raw {
      RawTile<T, L, K> x;
      Value y;
    };
    const BitsOf<T>* data;
    const i32* perm;
    const u8* other;
    i64 own;
    Value r;
    const RowFoldArgs& a;

    JI_HD Items(const RowFoldSlice<T>& s, const CsrView& csr, i64 column)
        : data(s.edges() + column), perm(csr.perm), other(nullptr), own(0), r{}, a(s.a) {
      if (a.other) other = s.other_at(column);
      if (a.row) own = s.at(RowFoldArgs::kRow) + column;
    }
    JI_HD void set_row(i64 row) {
      if (a.row) r = load_tile_either<T, L, K>(a.row, own + row * a.row_pitch, a.row_wide, a.mini);
    }
    JI_HD EdgesFrom<Order::kEither> from(i32 p) const { return {perm, p}; }
    JI_HD i32 index(const EdgesFrom<Order::kEither>& from, int u) const { return from.index(u); }
    JI_HD i32 nothing() const { return -1; }
    JI_HD bool there(i32 edge) const { return (u32)edge < (u32)a.csr.num_edges; }
    JI_HD Raw fetch(i32 edge) const {
      Raw raw;
      raw.x = load_edge<T, L, K>(row_at(data, edge, a.edge_bytes));
      if (a.other)
        raw.y =
            load_tile_either<T, L, K>(row_at(other, edge, a.other_bytes), 0, a.other_wide, a.mini);
      return raw;
    }
    JI_HD Value add(const Value& acc, const Raw& raw) const {
      using V = Vec<A, L>;
      const Value x = widen<T, L, K>(raw.x, a.mini);
      switch (a.map) {
        case RowMap::kValue:
          return TileFold<Sum, Value>::combine(acc, x);
        case RowMap::kExp:
          return tile_zip3(x, r, acc, [](V v, V m, V sum) { return sum + exp_below<A, L>(v, m); });
        case RowMap::kSquare:
          return tile_zip3(x, r, acc, [](V v, V m, V sum) {
            const V d = v - m;
            return fma<A, L>(d, d, sum);
          });
        case RowMap::kProduct:
          return tile_zip3(x, raw.y, acc, [](V v, V y, V sum) { return fma<A, L>(v, y, sum); });
        case RowMap::kTies:
          return tile_zip3(x, r, acc,
                           [](V v, V m, V sum) { return sum + tie<A, L>(v, m, V{} + A(1)); });
        case RowMap::kTieProduct:
          return tile_zip(tile_zip3(x, r, raw.y, [](V v, V m, V y) { return tie<A, L>(v, m, y); }),
                          acc, [](V part, V sum) { return sum + part; });
      }
      return acc;
    }
  };
};

}  // namespace jax_index::JI_TARGET
