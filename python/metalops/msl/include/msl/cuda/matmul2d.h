// matmul2d (tile GEMM) and reductions of its destinations on NVIDIA's GPUs. Every simdgroup
// accumulates its part of the tile in registers, in the tensor cores' fragment layout
// (warp_tile.h).
//
// Tensor cores (mma, wgmma) multiply operands that are exact in half or in bfloat, and warpgroups
// bytes and some that are not exact (FactorInMemory). Operands of a threadgroup's operation are
// staged in shared memory, those of a single simdgroup are read in place. All other GEMMs use fused
// multiply-adds.
#pragma once

#include <msl/cuda/copy_engine.h>
#include <msl/cuda/gathered_maps.h>
#include <msl/cuda/staging.h>
#include <msl/cuda/warp_tile.h>
#include <msl/cuda/warpgroup.h>
#include <msl/tensor_ops/matrix_view.h>

namespace msl::msl_impl {

MSL_INLINE Lanes whole_simdgroup() { return {~0u, lane_in_simdgroup(), ~0u}; }

// ---- conversion between layouts -----------------------------------------------------------------

template <class From, class To>
constexpr bool are_inverse() {
  for (uint lane = 0; lane < 32; ++lane) {
    for (uint slot = 0; slot < uint(From::capacity); ++slot) {
      const TilePlace place = From::place(lane, slot);
      const TileOwner owner = To::owner(place.row, place.column);
      if (place.exists && (owner.lane != lane || owner.slot != slot)) return false;
    }
  }
  return true;
}
static_assert(are_inverse<SimdgroupTile<16, 32, false>, SimdgroupTile<16, 32, false>>());
static_assert(are_inverse<SimdgroupTile<32, 16, true>, SimdgroupTile<32, 16, true>>());
static_assert(are_inverse<WarpTile<16, 32>, WarpTile<16, 32>>());

// Converts the elements of a tile from one layout to another with shuffles. Called by the whole
// simdgroup.
template <class From, class To, class E>
MSL_INLINE void exchange(const E* from, E* to) {
  const Lanes lanes = whole_simdgroup();
#pragma unroll 1
  for (uint slot = 0; slot < uint(To::capacity); ++slot) {
    const TilePlace place = To::place(lanes.lane, slot);
    const TileOwner owner =
        place.exists ? From::owner(place.row, place.column) : TileOwner{lanes.lane, 0};
#pragma unroll 1
    for (uint other = 0; other < uint(From::capacity); ++other) {
      const E element = from_lane(lanes, from[other], owner.lane);
      if (other == owner.slot) to[slot] = element;
    }
  }
}
#if MSL_COOPERATIVE_LAYOUT == 10
// Both layouts have the same 16 x 16 fragments, and the same rows in them. Of the eight pairs of
// adjacent elements in a row, a lane has pairs 2 q and 2 q + 1 in one layout, and t and t + 4 in
// the other. They are exchanged in two rounds; in each, every one of the row's four lanes sends and
// receives one pair.
template <class E>
struct Neighbours {
  E first, second;
};
template <int Rows, int Columns, class E>
MSL_INLINE void to_warp(const SimdgroupTile<Rows, Columns, false>*, const E* from, E* to) {
  const Lanes lanes = whole_simdgroup();
  const bool sends_second = lanes.lane >> 3 & 1;
  const uint lane = warp_lane(), t = lane & 3, row = lane >> 2;
  const uint in_row = (row & 3) << 1 | row >> 2 << 4 | t >> 1;
  const bool is_odd = t & 1;
  MSL_UNROLLED
  for (int four = 0; four < WarpTile<Rows, Columns>::capacity; four += 4) {
    const Neighbours<E> x{from[four], from[four + 1]}, y{from[four + 2], from[four + 3]};
    const Neighbours<E> a = from_lane(lanes, sends_second ? y : x, in_row | is_odd << 3);
    const Neighbours<E> b = from_lane(lanes, sends_second ? x : y, in_row | !is_odd << 3);
    to[four] = is_odd ? b.first : a.first;
    to[four + 1] = is_odd ? b.second : a.second;
    to[four + 2] = is_odd ? a.first : b.first;
    to[four + 3] = is_odd ? a.second : b.second;
  }
}
template <int Rows, int Columns, class E>
MSL_INLINE void from_warp(const SimdgroupTile<Rows, Columns, false>*, const E* from, E* to) {
  const Lanes lanes = whole_simdgroup();
  const bool sends_right = warp_lane() & 1;
  const uint lane = lanes.lane, row = (lane >> 1 & 3) | lane >> 4 << 2;
  const bool is_right = lane >> 3 & 1;
  const uint in_row = row << 2 | (lane & 1) << 1;
  MSL_UNROLLED
  for (int four = 0; four < WarpTile<Rows, Columns>::capacity; four += 4) {
    const Neighbours<E> x{from[four], from[four + 1]}, y{from[four + 2], from[four + 3]};
    const Neighbours<E> a =
        from_lane(lanes, sends_right ? y : x, abi::lane_of(in_row | uint(is_right)));
    const Neighbours<E> b =
        from_lane(lanes, sends_right ? x : y, abi::lane_of(in_row | uint(!is_right)));
    to[four] = is_right ? b.first : a.first;
    to[four + 1] = is_right ? b.second : a.second;
    to[four + 2] = is_right ? a.first : b.first;
    to[four + 3] = is_right ? a.second : b.second;
  }
}
#endif
template <int Rows, int Columns, class Tile, class E>
MSL_INLINE void to_warp(const Tile*, const E* from, E* to) {
  exchange<Tile, WarpTile<Rows, Columns>>(from, to);
}
template <int Rows, int Columns, class Tile, class E>
MSL_INLINE void from_warp(const Tile*, const E* from, E* to) {
  exchange<WarpTile<Rows, Columns>, Tile>(from, to);
}
template <int Rows, int Columns, class E>
MSL_INLINE void to_warp(const WarpTile<Rows, Columns>*, const E* from, E* to) {
  MSL_UNROLLED
  for (int slot = 0; slot < WarpTile<Rows, Columns>::capacity; ++slot) to[slot] = from[slot];
}
template <int Rows, int Columns, class E>
MSL_INLINE void from_warp(const WarpTile<Rows, Columns>*, const E* from, E* to) {
  MSL_UNROLLED
  for (int slot = 0; slot < WarpTile<Rows, Columns>::capacity; ++slot) to[slot] = from[slot];
}
// Converts the elements of a cooperative tensor.
template <int Rows, int Columns, class Tensor, class E>
MSL_INLINE void to_warp_from(const Tensor& from, E* to) {
  using Layout = typename Tensor::layout::Tile::Tile;
  E slots[Layout::capacity];
  MSL_UNROLLED
  for (int slot = 0; slot < Layout::capacity; ++slot) slots[slot] = E(from[ushort(slot)]);
  to_warp<Rows, Columns>(static_cast<const Layout*>(nullptr), slots, to);
}

// ---- operands -----------------------------------------------------------------------------------

// An operand in memory: reads 0 beyond its extents, the tile and K.
template <class View>
struct TileView : View {
  using Value = metal::remove_cv_t<typename View::Element>;
  MSL_INLINE TileView(const View& of, long most_rows, long most_columns) : View(of) {
    if (most_rows < this->rows) this->rows = most_rows;
    if (most_columns < this->columns) this->columns = most_columns;
  }
  MSL_INLINE float value(long row, long column) const {
    return row < this->rows && column < this->columns ? View::value(row, column) : 0.0f;
  }
  // Packs two adjacent elements of a row.
  template <class T>
  MSL_INLINE abi::u32 pair(long row, long column) const {
    if constexpr (View::is_plain && same<Value, T>) {
      if (this->column_stride == 1 && row < this->rows && column + 1 < this->columns) {
        const T* const from = &this->first.at(row * this->row_stride + column);
        if (reinterpret_cast<unsigned long>(from) % 4 == 0) {
          return *reinterpret_cast<const abi::u32*>(from);
        }
      }
    }
    return pair_of<T>(value(row, column), value(row, column + 1));
  }
  template <class T>
  MSL_INLINE abi::u32 pair_below(long row, long column) const {
    return pair_of<T>(value(row, column), value(row + 1, column));
  }
};

template <class E, class Planes>
inline constexpr bool is_bare<TileView<MatrixView<E, Planes>>> = [] {
  if constexpr (is_format<E>) {
    return Format<metal::remove_cv_t<E>>::bits == 8 && !Planes::has_scales;
  } else {
    return true;
  }
}();

template <class View>
MSL_INLINE TileView<View> tile_view(const View& of, long rows, long columns) {
  return TileView<View>(of, rows, columns);
}

// The operands seen from a lane of the simdgroup whose part of the tile begins at a given row or
// column. row(i, k): element k of the lane's i-th row; fragment<T>(i, k): a tensor core fragment of
// 16 rows.
template <class View>
struct LeftInMemory {
  const View& view;
  int first;
  uint lane;
  MSL_INLINE float row(int i, int k) const { return view.value(first + i * 8 + int(lane >> 2), k); }
  template <class T>
  MSL_INLINE void fragment(abi::u32 (&to)[4], int i, int k) const {
    MSL_UNROLLED
    for (int q = 0; q < 4; ++q) {
      to[q] = view.template pair<T>(first + i * 16 + (q & 1) * 8 + int(lane >> 2),
                                    k + (q >> 1) * 8 + int(lane & 3) * 2);
    }
  }
};
template <class View>
struct RightInMemory {
  const View& view;
  int first;
  uint lane;
  // Returns element k of the lane's j-th column.
  MSL_INLINE float column(int k, int j) const {
    return view.value(k, first + j / 2 * 8 + j % 2 + int(lane & 3) * 2);
  }
  template <class T>
  MSL_INLINE void fragment(abi::u32 (&to)[4], int j, int k) const {
    MSL_UNROLLED
    for (int q = 0; q < 4; ++q) {
      to[q] = view.template pair_below<T>(k + (q & 1) * 8 + int(lane & 3) * 2,
                                          first + j * 16 + (q >> 1) * 8 + int(lane >> 2));
    }
  }
};
// The right operand if all of it is in shared memory: loaded in vectors of 16 bytes.
template <class View>
struct RightInShared {
  const View& view;
  abi::u32 mine;  // address of the lane's row of a matrix, in the first fragment
  abi::u32 rows_apart, columns_apart;
  MSL_INLINE RightInShared(const View& of, uint lane) : view(of) {
    const bool is_deep = view.row_stride == 1;
    const long matrix = lane >> 3, in_matrix = lane & 7;
    const long k = (matrix & 1) * 8 + (is_deep ? 0 : in_matrix);
    const long column = (matrix >> 1) * 8 + (is_deep ? in_matrix : 0);
    mine = abi::u32(::__cvta_generic_to_shared(&view.first.at(0))) +
           abi::u32(k * view.row_stride + column * view.column_stride) * 2;
    rows_apart = abi::u32(view.row_stride) * 2;
    columns_apart = abi::u32(view.column_stride) * 2;
  }
  // Returns true if K and the columns of a tile can be read this way.
  static MSL_INLINE bool can_read(const View& view, int inner, int columns) {
    if constexpr (View::is_plain && sizeof(typename View::Value) == 2) {
      const void* const first = &view.first.at(0);
      const long apart = view.row_stride == 1 ? view.column_stride : view.row_stride;
      return ::__isShared(first) && ::__cvta_generic_to_shared(first) % 16 == 0 && apart % 8 == 0 &&
             view.rows >= inner && view.columns >= columns;
    } else {
      return false;
    }
  }
  MSL_INLINE float column(int k, int j) const {
    return RightInMemory<View>{view, 0, warp_lane()}.column(k, j);
  }
  template <class T>
  MSL_INLINE void fragment(abi::u32 (&to)[4], int j, int k) const {
    const abi::u32 at = mine + abi::u32(k) * rows_apart + abi::u32(j * 16) * columns_apart;
    if (view.row_stride == 1) {
      load_matrices<false>(to, at);
    } else {
      load_matrices<true>(to, at);
    }
  }
};
// Operands in cooperative tensors, in the tensor cores' layout. All lanes call these functions
// together; k is a compile-time constant.
template <int Rows, int Columns, class E>
struct LeftInLanes {
  using Tile = WarpTile<Rows, Columns>;
  E elements[Tile::capacity];
  Lanes lanes;
  uint lane;
  MSL_INLINE float row(int i, int k) const {
    const int slot = (i / 2 * Tile::across + k / 16) * 8 + i % 2 * 4 + k % 16 / 8 * 2 + k % 2;
    return float(from_lane(lanes, elements[slot], abi::lane_of((lane & ~3u) | (uint(k) / 2 & 3))));
  }
  template <class T>
  MSL_INLINE void fragment(abi::u32 (&to)[4], int i, int k) const {
    MSL_UNROLLED
    for (int q = 0; q < 4; ++q) {
      const int slot = (i * Tile::across + k / 16) * 8 + q % 2 * 4 + q / 2 * 2;
      if constexpr (same<E, T>) {
        to[q] = abi::u32(elements[slot].bits) | abi::u32(elements[slot + 1].bits) << 16;
      } else {
        to[q] = pair_of<T>(float(elements[slot]), float(elements[slot + 1]));
      }
    }
  }
};
template <int Rows, int Columns, class E>
struct RightInLanes {
  using Tile = WarpTile<Rows, Columns>;
  E elements[Tile::capacity];
  Lanes lanes;
  uint lane;
  MSL_INLINE float column(int k, int j) const {
    const int slot = (k / 16 * Tile::across + j / 4) * 8 + k % 16 / 8 * 4 + j % 4;
    return float(from_lane(lanes, elements[slot], abi::lane_of((uint(k) & 7) << 2 | (lane & 3))));
  }
  template <class T>
  MSL_INLINE void fragment(abi::u32 (&to)[4], int j, int k) const {
    MSL_UNROLLED
    for (int q = 0; q < 4; ++q) {
      const int slot = (k / 16 * Tile::across + j) * 8 + q % 2 * 4 + q / 2 * 2;
      to[q] = transposed(pair_of<T>(float(elements[slot]), float(elements[slot + 1])));
    }
  }
};

// ---- multiplication -----------------------------------------------------------------------------

constexpr bool is_small(Element e) {
  using enum Element;
  return e == kInt8 || e == kUint8 || e == kInt4 || e == kUint4 || e == kInt2 || e == kUint2 ||
         e == kE2m1 || e == kE4m3;
}
constexpr bool is_exact_in_half(Element e) {
  return e == Element::kHalf || e == Element::kE5m2 || is_small(e);
}
constexpr bool is_exact_in_bfloat(Element e) { return e == Element::kBfloat || is_small(e); }

// The type to which factors are converted: half or bfloat, of which tensor cores compute exact
// products, or float.
template <class L, class R, class E, bool HasScales>
struct FactorOf {
  static constexpr Element left = element_of_product<L>, right = element_of_product<R>;
  static constexpr bool is_float = HasScales || same<E, int> || !is_of_tensor_cores<half>;
  static constexpr bool is_half = !is_float && is_exact_in_half(left) && is_exact_in_half(right);
  static constexpr bool is_bfloat =
      !is_float && is_exact_in_bfloat(left) && is_exact_in_bfloat(right);
  typedef metal::conditional_t<is_half, half, metal::conditional_t<is_bfloat, bfloat, float>> type;
};
// Likewise of an operation whose operands are in memory. Warpgroups also multiply bytes; and, if
// the precision may be relaxed, Tf32 and floats of 8 bits, of which sums lose some precision.
template <matmul2d_descriptor D, int Simdgroups, class L, class R, class E, bool HasScales>
struct FactorInMemory {
  static constexpr int inner = has_dynamic_k(D) ? 0 : D.k;
  template <class T>
  static constexpr bool can_be() {
    return is_for_warpgroups<D.m, D.n, Simdgroups>() &&
           RingOf<sizeof(T), D.m, D.n, inner>::is_possible;
  }
  static constexpr auto choose() {
    constexpr Element left = element_of_product<L>, right = element_of_product<R>;
    constexpr bool are_eighths =
        left == right && (left == Element::kE4m3 || left == Element::kE5m2);
    constexpr bool is_relaxed = D.relaxed_precision && !HasScales;
    using Usual = typename FactorOf<L, R, E, HasScales>::type;
    if constexpr (same<E, int>) {
      using Byte = metal::conditional_t<left == Element::kUint8, unsigned char, signed char>;
      return metal::conditional_t<can_be<Byte>(), metal::type_identity<Byte>,
                                  metal::type_identity<float>>();
    } else if constexpr (is_relaxed && same<Usual, float> && can_be<Tf32>()) {
      return metal::type_identity<Tf32>();
    } else if constexpr (is_relaxed && are_eighths && can_be<L>()) {
      return metal::type_identity<L>();
    } else {
      return metal::type_identity<Usual>();
    }
  }
  typedef typename decltype(choose())::type type;
};

// Accumulates a b into 16 x 16 sums.
template <class T>
MSL_INLINE void multiply_fragments(float* sums, const abi::u32 (&a)[4], const abi::u32 (&b)[4]) {
  MSL_UNROLLED
  for (int h = 0; h < 2; ++h) {
    multiply_accumulate_16x8x16<T>(sums[2 * h], sums[2 * h + 1], sums[4 + 2 * h], sums[5 + 2 * h],
                                   a, b[2 * h], b[2 * h + 1]);
  }
}

MSL_INLINE float multiplied(float a, float b, float sum) { return ::fmaf(a, b, sum); }
MSL_INLINE int multiplied(int a, int b, int sum) { return int(uint(a) * uint(b) + uint(sum)); }

// Accumulates the slice [k, k + 16) of K into a simdgroup's part.
template <class T, class Tile, class Left, class Right>
MSL_INLINE void multiply_step(const Left& left, const Right& right, int k, float* sums) {
  abi::u32 a[Tile::down][4], b[Tile::across][4];
  MSL_UNROLLED
  for (int i = 0; i < Tile::down; ++i) left.template fragment<T>(a[i], i, k);
  MSL_UNROLLED
  for (int j = 0; j < Tile::across; ++j) right.template fragment<T>(b[j], j, k);
  MSL_UNROLLED
  for (int i = 0; i < Tile::down; ++i) {
    MSL_UNROLLED
    for (int j = 0; j < Tile::across; ++j) {
      multiply_fragments<T>(sums + (i * Tile::across + j) * 8, a[i], b[j]);
    }
  }
}
template <class Tile, class Left, class Right, class Sum>
MSL_INLINE void add_products(const Left& left, const Right& right, int k, Sum* sums) {
  Sum a[Tile::down * 2], b[Tile::across * 4];
  MSL_UNROLLED
  for (int i = 0; i < Tile::down * 2; ++i) a[i] = Sum(left.row(i, k));
  MSL_UNROLLED
  for (int j = 0; j < Tile::across * 4; ++j) b[j] = Sum(right.column(k, j));
  MSL_UNROLLED
  for (int slot = 0; slot < Tile::capacity; ++slot) {
    const int fragment = slot / 8;
    const Sum x = a[fragment / Tile::across * 2 + slot % 8 / 4];
    const Sum y = b[fragment % Tile::across * 4 + slot % 4];
    sums[slot] = multiplied(x, y, sums[slot]);
  }
}
// Multiplies a whole part, with operands read in place. Inner: K, if it is known at compile time
// and has to be; otherwise 0.
template <class Factor, class Tile, int Inner, class Left, class Right, class Sum>
MSL_INLINE void multiply_in_place(const Left& left, const Right& right, int inner, Sum* sums) {
  constexpr int step = same<Factor, float> ? 1 : 16;
  const auto one = [&](int k) {
    if constexpr (same<Factor, float>) {
      add_products<Tile>(left, right, k, sums);
    } else {
      multiply_step<Factor, Tile>(left, right, k, sums);
    }
  };
  if constexpr (Inner != 0) {
    MSL_UNROLLED
    for (int k = 0; k < Inner; k += step) one(k);
  } else {
#pragma unroll 1
    for (int k = 0; k < inner; k += step) one(k);
  }
}

// Accumulates the product of a staged block into the sums of each warp's part (mma).
template <class T, class A, class B, class Tile, int Depth>
MSL_INLINE void multiply_block(abi::u32 a, abi::u32 b, int row, int column, uint lane,
                               float* sums) {
  MSL_UNROLLED
  for (int k = 0; k < Depth; k += 16) {
    abi::u32 x[Tile::down][4], y[Tile::across][4];
    MSL_UNROLLED
    for (int i = 0; i < Tile::down; ++i) A::template load<true>(x[i], a, row + i * 16, k, lane);
    MSL_UNROLLED
    for (int j = 0; j < Tile::across; ++j) {
      B::template load<false>(y[j], b, column + j * 16, k, lane);
    }
    MSL_UNROLLED
    for (int i = 0; i < Tile::down; ++i) {
      MSL_UNROLLED
      for (int j = 0; j < Tile::across; ++j) {
        multiply_fragments<T>(sums + (i * Tile::across + j) * 8, x[i], y[j]);
      }
    }
  }
}
// Starts the product of a staged block with warpgroups (wgmma). It runs asynchronously.
template <class T, class A, class B, class Tile, int Depth, bool LeftDeep, bool RightDeep>
MSL_INLINE void begin_block(abi::u32 a, abi::u32 b, int warps_before, SumOfFactors<T>* sums) {
  constexpr int columns = Tile::across * 16;
  constexpr int width = widest_instruction(columns);
  constexpr abi::u64 left = matrix_in_memory<A::line_bytes>(A::between_blocks, A::line_bytes * 8);
  constexpr abi::u64 right = matrix_in_memory<B::line_bytes>(B::between_blocks, B::line_bytes * 8);
  begin_products();
  MSL_UNROLLED
  for (int k = 0; k < Depth; k += 32 / int(sizeof(T))) {
    MSL_UNROLLED
    for (int i = 0; i < Tile::down; ++i) {
      const abi::u32 x = a + A::address(warps_before / 4 * Tile::down * 64 + i * 64, k);
      MSL_UNROLLED
      for (int j = 0; j < columns; j += width) {
        multiply_in_warpgroup<T, width, LeftDeep, RightDeep>(
            sums + (i * Tile::across + j / 16) * 8, matrix_at(left, x),
            matrix_at(right, b + B::address(j, k)));
      }
    }
  }
  end_products();
}

// Finds the lines of operands that have to (gathered_lines.h).
template <int M, int N, int Threads, class Left, class Right>
MSL_INLINE void find_lines(const Left& left, const Right& right) {
  if constexpr (requires { left.source.find_lines(M, 0, Threads); }) {
    const int thread = int((index_in_threadgroup() & ~31u) | warp_lane());
    left.source.find_lines(M, thread, Threads);
    right.source.find_lines(N, thread, Threads);
    ::__syncthreads();
  }
}
// Prepares a block of both operands, for loaders that have to (gathered_lines.h); a barrier follows
// before it is brought.
template <class A, class B>
MSL_INLINE void prepare(const A& a, const B& b, int block) {
  if constexpr (requires { a.prepare(block); }) a.prepare(block);
  if constexpr (requires { b.prepare(block); }) b.prepare(block);
}
template <int Count, class A, class B>
MSL_INLINE void prepare_first(const A& a, const B& b) {
  if constexpr (requires { a.prepare(0); }) {
    MSL_UNROLLED
    for (int block = 0; block < Count; ++block) prepare(a, b, block);
    ::__syncthreads();
  }
}

// Computes the whole tile of a threadgroup's operation with staging (software pipelining with
// cp.async). LeftDeep, RightDeep: the operand is contiguous in memory along K.
template <class T, int M, int N, int Simdgroups, bool LeftDeep, bool RightDeep, class Left,
          class Right>
MSL_INLINE void multiply_staged(const Left& left, const Right& right, int inner, float* sums) {
  find_lines<M, N, Simdgroups * 32>(left, right);
  using Part = Bands<M, N, Simdgroups>;
  using Tile = WarpTile<Part::rows, Part::columns>;
  using Staging = StagesOf<M, N, Simdgroups>;
  constexpr int depth = Staging::depth, count = Staging::count, threads = Simdgroups * 32;
  using A = StagedBlock<T, Staging::rows, depth, LeftDeep>;
  using B = StagedBlock<T, Staging::columns, depth, RightDeep>;
  const uint lane = warp_lane(), thread = (index_in_threadgroup() & ~31u) | lane;
  const int row = Part::first_row(thread / 32), column = Part::first_column(thread / 32);
  BlockLoader<T, A, Left, depth, LeftDeep, threads, 1> a(left, int(thread));
  BlockLoader<T, B, Right, depth, RightDeep, threads, 1> b(right, int(thread));
  const abi::u32 memory = staging_memory();
  const int blocks = (inner + depth - 1) / depth;
  const auto bring = [&](int block, int stage) {
    if (block < blocks) {
      a.bring(memory + stage * Staging::bytes, block);
      b.bring(memory + stage * Staging::bytes + A::bytes, block);
    }
    end_of_copies();
  };
  MSL_UNROLLED
  for (int block = 0; block < count; ++block) prepare(a, b, block);
  ::__syncthreads();  // an earlier operation may still be reading
  MSL_UNROLLED
  for (int block = 0; block < count - 1; ++block) bring(block, block);
  int stage = 0, next = count - 1;
#pragma unroll 1
  for (int block = 0; block < blocks; ++block) {
    const abi::u32 at = memory + stage * Staging::bytes;
    wait_for_copies<count - 2>();
    ::__syncthreads();
    bring(block + count - 1, next);
    prepare(a, b, block + count);
    multiply_block<T, A, B, Tile, depth>(at, at + A::bytes, row, column, lane, sums);
    stage = stage + 1 == count ? 0 : stage + 1;
    next = next + 1 == count ? 0 : next + 1;
  }
  wait_for_copies<0>();
}

// Computes the whole tile with warpgroups. The product of one block is in flight while that of the
// next is started, so the tensor cores do not wait for threads.
template <class T, int M, int N, int Inner, int Simdgroups, bool LeftDeep, bool RightDeep>
struct WarpgroupProduct {
  using Part = Bands<M, N, Simdgroups>;
  using Tile = WarpTile<Part::rows, Part::columns>;
  using Ring = RingOf<sizeof(T), M, N, Inner>;
  using Sum = SumOfFactors<T>;
  static constexpr int depth = Ring::depth, count = Ring::count, threads = Simdgroups * 32;
  static constexpr int barriers_bytes = 2 * 8 * count;
  static constexpr bool has_deep_left = LeftDeep || !is_read_across<T>;
  static constexpr bool has_deep_right = RightDeep || !is_read_across<T>;
  using A = StagedBlock<T, M, depth, has_deep_left>;
  using B = StagedBlock<T, N, depth, has_deep_right>;
  using BoxesOfA = BoxLoader<A, depth, LeftDeep, Tile::down>;
  using BoxesOfB = BoxLoader<B, depth, RightDeep, 1>;

  abi::u32 memory;
  int thread, warps_before, blocks;
  Sum* sums;

  MSL_INLINE void multiply(int stage) const {
    const abi::u32 at = memory + stage * Ring::bytes;
    pin_sums<Tile::capacity>(sums);
    begin_block<T, A, B, Tile, depth, has_deep_left, has_deep_right>(at, at + A::bytes,
                                                                     warps_before, sums);
    pin_sums<Tile::capacity>(sums);
  }
  MSL_INLINE void finish() const {
    wait_for_products<0>();
    pin_sums<Tile::capacity>(sums);
  }

  // All threads copy blocks. A stage is filled anew when all warpgroups have finished its product,
  // which they know when they meet next.
  template <class Left, class Right>
  MSL_INLINE void run(const Left& left, const Right& right) const {
    typename LoaderOf<T, A, Left, depth, LeftDeep, threads, Tile::down>::type a(left, thread);
    typename LoaderOf<T, B, Right, depth, RightDeep, threads, 1>::type b(right, thread);
    const auto bring = [&](int block, int stage) {
      if (block < blocks) {
        a.bring(memory + stage * Ring::bytes, block);
        b.bring(memory + stage * Ring::bytes + A::bytes, block);
      }
      end_of_copies();
    };
    // Elements loaded ahead to registers have arrived when the product before is done.
    constexpr bool loads_ahead = requires { a.loads_ahead; } || requires { b.loads_ahead; };
    prepare_first<count - 1>(a, b);
#pragma unroll 1
    for (int block = 0; block < count - 2; ++block) bring(block, block);
    int stage = 0, next = count - 2;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      wait_for_copies<count - 3>();
      show_to_tensor_cores();
      ::__syncthreads();
      multiply(stage);
      if (loads_ahead) wait_for_products<1>();
      bring(block + count - 2, next);
      prepare(a, b, block + count - 1);
      if (!loads_ahead) wait_for_products<1>();
      stage = stage + 1 == count ? 0 : stage + 1;
      next = next + 1 == count ? 0 : next + 1;
    }
    finish();
    wait_for_copies<0>();
  }

  // The copy engine copies blocks, asked for by one thread. Each stage has a barrier for its
  // copies, and one for the warps that have finished its product.
  // meanwhile() is what threads do while the first copies come.
  template <class Left, class Right, class Meanwhile>
  MSL_INLINE void run_by_maps(Left a, Right b, const Meanwhile& meanwhile) const {
    const abi::u32 full = memory + count * Ring::bytes, empty = full + 8 * count;
    const bool is_first_of_warp = warp_lane() == 0, is_first_warp = thread < 32;
    if (thread == 0) {
      MSL_UNROLLED
      for (int stage = 0; stage < count; ++stage) {
        begin_barrier(full + 8 * stage, 1);
        begin_barrier(empty + 8 * stage, Simdgroups);
      }
      show_to_copy_engine();
    }
    ::__syncthreads();
    const auto bring = [&](const auto& of_a, const auto& of_b, int stage) {
      expect_bytes(full + 8 * stage, Ring::bytes);
      a.bring(memory + stage * Ring::bytes, of_a, full + 8 * stage);
      b.bring(memory + stage * Ring::bytes + A::bytes, of_b, full + 8 * stage);
    };
    if (is_first_warp) {
      a.begin();
      b.begin();
      MSL_UNROLLED
      for (int block = 0; block < count - 1; ++block) {
        if (block < blocks) {
          const auto of_a = a.at(block);
          const auto of_b = b.at(block);
          if (thread == 0) bring(of_a, of_b, block);
        }
      }
    }
    ::__syncwarp();
    meanwhile();
    int stage = 0, before = count - 1;
    abi::u32 parity = 0, parity_before = 1;
#pragma unroll 1
    for (int block = 0; block < blocks; ++block) {
      wait_at(full + 8 * stage, parity);
      multiply(stage);
      if (is_first_warp && block + count - 1 < blocks) {
        const auto of_a = a.at(block + count - 1);
        const auto of_b = b.at(block + count - 1);
        wait_for_products<1>();
        if (block > 0 && is_first_of_warp) arrive_at(empty + 8 * before);
        if (thread == 0) {
          if (block > 0) wait_at(empty + 8 * before, parity_before);
          bring(of_a, of_b, before);
        }
      } else {
        wait_for_products<1>();
        if (block > 0 && is_first_of_warp) arrive_at(empty + 8 * before);
      }
      ::__syncwarp();
      before = stage;
      parity_before = parity;
      if (++stage == count) {
        stage = 0;
        parity ^= 1;
      }
    }
    finish();
    ::__syncthreads();
    if (thread == 0) {
      MSL_UNROLLED
      for (int b = 0; b < 2 * count; ++b) end_barrier(full + 8 * b);
    }
    ::__syncwarp();
  }
};
struct Nothing {
  MSL_INLINE void operator()() const {}
};
// Whether both operands are gathered and may have maps (gathered_maps.h).
template <class Product, class Left, class Right>
constexpr bool are_in_maps() {
  if constexpr (requires(const Left& a, const Right& b) { a.source.in_map(), b.source.in_map(); }) {
    return Product::Tile::down == 1 && Product::A::rows % 64 == 0 && Product::B::rows % 64 == 0 &&
           Product::depth == 64 && Product::A::size == 2;
  } else {
    return false;
  }
}
// Inner: K, if it is known at compile time; otherwise 0.
template <class T, int M, int N, int Inner, int Simdgroups, bool LeftDeep, bool RightDeep,
          class Left, class Right, class Meanwhile = Nothing>
MSL_INLINE void multiply_by_warpgroups(const Left& left, const Right& right, int inner,
                                       SumOfFactors<T>* sums, const Meanwhile& meanwhile = {}) {
  using Product = WarpgroupProduct<T, M, N, Inner, Simdgroups, LeftDeep, RightDeep>;
  using Ring = typename Product::Ring;
  const int thread = int((index_in_threadgroup() & ~31u) | warp_lane());
  show_to_copy_engine();
  ::__syncthreads();  // an earlier operation may still be reading
  const Product product{
      launched_memory<Ring::count * Ring::bytes + Product::barriers_bytes>(), thread,
      ::__shfl_sync(~0u, thread / 128 * 4, 0),  // uniform in a warp, as the compiler can see
      (inner + Ring::depth - 1) / Ring::depth, sums};
  if constexpr (Product::BoxesOfA::is_possible && Product::BoxesOfB::is_possible &&
                are_factors<T, Left> && are_factors<T, Right>) {
    const MappedOperand a = mapped<sizeof(T), LeftDeep>(left, M, inner),
                        b = mapped<sizeof(T), RightDeep>(right, N, inner);
    // The copy engine takes longer to begin.
    if (a.exists && b.exists && product.blocks >= Ring::count) {
      product.run_by_maps(typename Product::BoxesOfA{a}, typename Product::BoxesOfB{b}, meanwhile);
      return;
    }
  }
  if constexpr (are_in_maps<Product, Left, Right>()) {
    using A = decltype(left.source.in_map());
    using B = decltype(right.source.in_map());
    if (has_map<0, A>() && has_map<1, B>()) {
      product.run_by_maps(GatheredBoxes<A, M>(left.source.in_map(), 0),
                          GatheredBoxes<B, N>(right.source.in_map(), 1), meanwhile);
      return;
    }
  }
  find_lines<M, N, Simdgroups * 32>(left, right);
  meanwhile();
  product.run(left, right);
}

// Computes the whole tile with fused multiply-adds: blocks of both operands are converted to the
// sums' type and staged as lines of rows or columns, double-buffered; the next block is loaded into
// registers while one is multiplied.
template <class Sum, int M, int N, int Simdgroups, bool LeftDeep, bool RightDeep, class Left,
          class Right>
MSL_INLINE void add_staged_products(const Left& left, const Right& right, int inner, Sum* sums) {
  using Part = Bands<M, N, Simdgroups>;
  using Tile = WarpTile<Part::rows, Part::columns>;
  using Staging = StagesOf<M, N, Simdgroups>;
  constexpr int depth = Staging::depth_of_words, threads = Simdgroups * 32;
  using A = StagedLines<Sum, Staging::rows, depth, LeftDeep, threads>;
  using B = StagedLines<Sum, Staging::columns, depth, RightDeep, threads>;
  const uint lane = warp_lane(), thread = (index_in_threadgroup() & ~31u) | lane;
  const int row = Part::first_row(thread / 32) + Tile::row_of_lane(lane);
  const int column = Part::first_column(thread / 32) + Tile::column_of_lane(lane);
  Sum* const memory = reinterpret_cast<Sum*>(staging_pointer());
  A a{int(thread)};
  B b{int(thread)};
  ::__syncthreads();  // an earlier operation may still be reading
  a.fetch(left, 0);
  b.fetch(right, 0);
  a.put(memory);
  b.put(memory + A::size);
#pragma unroll 1
  for (int k = 0; k < inner; k += depth) {
    Sum* const here = memory + (k / depth & 1) * (A::size + B::size);
    Sum* const next = memory + ((k / depth + 1) & 1) * (A::size + B::size);
    ::__syncthreads();
    if (k + depth < inner) {
      a.fetch(left, k + depth);
      b.fetch(right, k + depth);
    }
#pragma unroll 2
    for (int i = 0; i < depth; ++i) {
      add_products<Tile>(LeftLine<Sum>{here + i * A::pitch + row},
                         RightLine<Sum>{here + A::size + i * B::pitch + column}, 0, sums);
    }
    if (k + depth < inner) {
      a.put(next);
      b.put(next + A::size);
    }
  }
}

// ---- destinations -------------------------------------------------------------------------------

// Calls f(slot, row, column) for the elements of the tile whose sums a lane has, or for every
// second one.
template <class Tile, int Step, class Part, class F>
MSL_INLINE void for_sums(const Part& part, uint lane, const F& f) {
  MSL_UNROLLED
  for (int slot = 0; slot < Tile::capacity; slot += Step) {
    const int row = Tile::row_of_lane(lane) + Tile::row_of_slot(uint(slot));
    const int column = Tile::column_of_lane(lane) + Tile::column_of_slot(uint(slot));
    if (row < part.rows && column < part.columns) f(slot, part.row + row, part.column + column);
  }
}
// Two adjacent elements, loaded and stored together.
template <class E>
struct alignas(2 * sizeof(E)) PairOf {
  E first, second;
};
template <class Tile, class Part, class Dst, class Sum>
MSL_INLINE void load_sums(const Part& part, uint lane, const Dst& from, Sum* sums) {
  if constexpr (is_tensor<Dst>) {
    for_sums<Tile, 1>(part, lane, [&](int slot, int row, int column) {
      const int at[] = {column, row};
      if (from.msl_has(at)) sums[slot] = Sum(from.msl_at(at));
    });
  } else {
    using Bands = typename Dst::layout::Tile::Part;
    to_warp_from<Bands::rows, Bands::columns>(from, sums);
  }
}
template <class Layout>
inline constexpr bool is_destination_of_warps = false;
template <matmul2d_descriptor D, class Scope, class L, class R>
  requires(ScopeOf<Scope>::exists)
inline constexpr bool is_destination_of_warps<DestinationLayout<D, Scope, L, R>> = [] {
  constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  if constexpr (simdgroups == 0) {
    return false;
  } else {
    using Part = Bands<D.m, D.n, simdgroups>;
    return same<typename ScopeTile<D.m, D.n, simdgroups>::Tile,
                WarpTile<Part::rows, Part::columns>>;
  }
}();

// An instruction, since the compiler may make branches of choices between the same two, and
// shuffles are many times slower in a warp that has diverged.
MSL_INLINE abi::u32 chosen(bool is_first, abi::u32 first, abi::u32 second) {
  abi::u32 result;
  asm("{.reg .pred p; setp.ne.u32 p, %3, 0; selp.b32 %0, %1, %2, p;}"
      : "=r"(result)
      : "r"(first), "r"(second), "r"(abi::u32(is_first)));
  return result;
}
// Exchanges words of two lanes at a distance: the lower one of that which sends_low, and the higher
// one of the other.
MSL_INLINE void exchange_words(abi::u32& low, abi::u32& high, bool sends_low, int distance) {
  const abi::u32 got = ::__shfl_xor_sync(~0u, chosen(sends_low, low, high), distance);
  low = chosen(sends_low, got, low);
  high = chosen(sends_low, high, got);
}
// Four lanes that follow each other have a word each of four groups of eight columns. Afterwards
// each has the four words of one group.
MSL_INLINE void transpose_words(abi::u32 (&words)[4], uint lane) {
  exchange_words(words[0], words[1], lane & 1, 1);
  exchange_words(words[2], words[3], lane & 1, 1);
  exchange_words(words[0], words[2], lane & 2, 2);
  exchange_words(words[1], words[3], lane & 2, 2);
}
// Stores 16-bit elements in vectors of eight; returns false if the tensor's memory does not allow
// it. word(slot): a slot's element and the next one. Called by the whole simdgroup.
template <class Tile, class Part, class Dst, class Word>
MSL_INLINE bool store_eights(const Part& part, uint lane, const Word& word, const Dst& to) {
  using E = typename Dst::value_type;
  if constexpr (sizeof(E) == 2 && Tile::across % 2 == 0) {
    const int first[] = {part.column, part.row};
    E* const begin = &to.msl_at(first);
    const long stride = to.get_stride(1);
    int rows = part.rows, columns = part.columns;
    if (Dst::get_static_extent(1) == metal::dynamic_extent) {
      rows = int(clamped(long(to.get_extent(1)) - part.row, rows));
    }
    if (Dst::get_static_extent(0) == metal::dynamic_extent) {
      columns = int(clamped(long(to.get_extent(0)) - part.column, columns));
    }
    const bool is_aligned = (address_of(begin) | abi::u64(stride * 2)) % 16 == 0;
    if (!is_aligned || columns % 8 != 0 || to.get_stride(0) != 1) return false;
    ::__syncwarp();
    MSL_UNROLLED
    for (int i = 0; i < Tile::down * 2; ++i) {
      const int row = i * 8 + int(lane >> 2);
      E* const line = begin + row * stride + int(lane & 3) * 8;
      MSL_UNROLLED
      for (int j = 0; j < Tile::across; j += 2) {
        abi::u32 words[4];
        MSL_UNROLLED
        for (int q = 0; q < 4; ++q) {
          const int slot = (i / 2 * Tile::across + j + q / 2) * 8 + i % 2 * 4 + q % 2 * 2;
          words[q] = word(slot);
        }
        transpose_words(words, lane);
        if (row < rows && j * 16 + int(lane & 3) * 8 < columns) {
          asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(line + j * 16), "r"(words[0]),
                       "r"(words[1]), "r"(words[2]), "r"(words[3])
                       : "memory");
        }
      }
    }
    return true;
  } else {
    return false;
  }
}
template <class Tile, class Part, class Dst, class Sum>
MSL_INLINE void store_sums(const Part& part, uint lane, const Sum* sums, Dst& to) {
  using E = typename Dst::value_type;
  if constexpr (is_tensor<Dst>) {
    constexpr bool is_matrix = requires(const Dst& tensor) { tensor.msl_place(); };
    if constexpr (is_matrix && (same<E, half> || same<E, bfloat>)) {
      const auto word = [&](int slot) {
        return pair_of<E>(float(sums[slot]), float(sums[slot + 1]));
      };
      if (store_eights<Tile>(part, lane, word, to)) return;
    }
    for_sums<Tile, 2>(part, lane, [&](int slot, int row, int column) {
      const int at[] = {column, row}, next[] = {column + 1, row};
      if (!to.msl_has(at)) return;
      E* const first = &to.msl_at(at);
      const E x = E(sums[slot]), y = E(sums[slot + 1]);
      const bool has_next = column + 1 < part.column + part.columns && to.msl_has(next);
      if (has_next && reinterpret_cast<abi::u64>(first) % sizeof(PairOf<E>) == 0 &&
          to.get_stride(0) == 1) {
        *reinterpret_cast<PairOf<E>*>(first) = {x, y};
        return;
      }
      *first = x;
      if (has_next) to.msl_at(next) = y;
    });
  } else {
    using Bands = typename Dst::layout::Tile::Part;
    using Layout = typename Dst::layout::Tile::Tile;
    Sum slots[Layout::capacity] = {};
    from_warp<Bands::rows, Bands::columns>(static_cast<const Layout*>(nullptr), sums, slots);
    MSL_UNROLLED
    for (int slot = 0; slot < Layout::capacity; ++slot) to[ushort(slot)] = E(slots[slot]);
  }
}

// Stores a destination that has the tensor cores' layout; returns false if it has not, or not in
// vectors. Called by its whole scope.
template <class From, class Dst>
MSL_INLINE bool store_in_vectors(const From& from, const Dst& to) {
  using Layout = typename From::layout;
  using E = typename From::element_type;
  if constexpr ((same<E, half> || same<E, bfloat>) && is_destination_of_warps<Layout>) {
    constexpr int m = Layout::descriptor.m, n = Layout::descriptor.n;
    using Tile = typename Layout::Tile::Tile;
    const TilePart<m, n, Layout::simdgroups> part(
        Layout::simdgroups > 1 ? index_in_threadgroup() / 32 : 0);
    const auto word = [&](int slot) {
      return abi::u32(from[ushort(slot)].bits) | abi::u32(from[ushort(slot + 1)].bits) << 16;
    };
    return store_eights<Tile>(part, warp_lane(), word, to);
  } else {
    return false;
  }
}

// Calls f(operand) with an operand distributed over the lanes of the only simdgroup, or in memory.
template <matmul2d_descriptor D, class L, class F>
MSL_INLINE void with_left(const L& left, uint lane, const F& f) {
  if constexpr (is_tensor<L>) {
    const auto view = tile_view(view_of(left, D.transpose_left), D.m, D.k);
    f(LeftInMemory<decltype(view)>{view, 0, lane});
  } else {
    LeftInLanes<D.m, D.k, typename L::element_type> operand{{}, whole_simdgroup(), lane};
    to_warp_from<D.m, D.k>(left, operand.elements);
    f(operand);
  }
}
template <class Factor, matmul2d_descriptor D, class R, class F>
MSL_INLINE void with_right(const R& right, uint lane, const F& f) {
  if constexpr (is_tensor<R>) {
    const auto view = tile_view(view_of(right, D.transpose_right), D.k, D.n);
    using View = metal::remove_cv_t<decltype(view)>;
    if (RightInShared<View>::can_read(view, D.k, D.n)) {
      if constexpr (View::is_plain && same<typename View::Value, Factor>) {
        f(RightInShared<View>(view, lane));
        return;
      }
    }
    f(RightInMemory<View>{view, 0, lane});
  } else {
    RightInLanes<D.k, D.n, typename R::element_type> operand{{}, whole_simdgroup(), lane};
    to_warp_from<D.k, D.n>(right, operand.elements);
    f(operand);
  }
}
template <class T>
constexpr bool has_scales() {
  if constexpr (is_tensor<T>) {
    return T::Planes::has_scales;
  } else {
    return false;
  }
}

}  // namespace msl::msl_impl
#include <msl/cuda/coded_lines.h>
#include <msl/cuda/gathered_lines.h>
#include <msl/cuda/staged_lines.h>
namespace msl::msl_impl {

// Computes the whole tile in one thread.
template <int M, int N, bool Accumulates, class Left, class Right, class Dst>
MSL_INLINE void multiply_in_thread(const Left& left, const Right& right, int inner,
                                   Dst& destination) {
  using E = typename Dst::value_type;
  using Sum = metal::conditional_t<same<E, int>, int, float>;
#pragma unroll 1
  for (int row = 0; row < M; ++row) {
#pragma unroll 1
    for (int column = 0; column < N; ++column) {
      E* element = nullptr;
      if constexpr (is_tensor<Dst>) {
        const int at[] = {column, row};
        if (!destination.msl_has(at)) continue;
        element = &destination.msl_at(at);
      } else {
        element = &destination[ushort(row * N + column)];
      }
      Sum sum = Accumulates ? Sum(*element) : Sum(0);
      for (int k = 0; k < inner; ++k) {
        sum = multiplied(Sum(left.value(row, k)), Sum(right.value(k, column)), sum);
      }
      *element = E(sum);
    }
  }
}

// Calls f(part, lane, sums) for the simdgroup's part of a tile, and stores its sums to the
// destination.
template <int M, int N, int Simdgroups, bool Accumulates, class Dst, class F>
MSL_INLINE void with_sums(Dst& destination, const F& f) {
  using Sum = metal::conditional_t<same<typename Dst::value_type, int>, int, float>;
  using Part = Bands<M, N, Simdgroups>;
  using Tile = WarpTile<Part::rows, Part::columns>;
  const uint lane = warp_lane();
  const TilePart<M, N, Simdgroups> part(Simdgroups > 1 ? index_in_threadgroup() / 32 : 0);
  Sum sums[Tile::capacity] = {};
  if constexpr (Accumulates) load_sums<Tile>(part, lane, destination, sums);
  f(part, lane, static_cast<Sum*>(sums));
  store_sums<Tile>(part, lane, sums, destination);
}

// Multiplies matrices in memory. Inner: K, if it is known at compile time; otherwise 0. by_column:
// the right operand with its columns as rows. LeftDeep, RightDeep: see multiply_staged().
template <class Factor, int M, int N, int Inner, int Simdgroups, bool Accumulates, bool LeftDeep,
          bool RightDeep, class Left, class Right, class ByColumn, class Dst>
MSL_INLINE void multiply_matrices(const Left& left, const Right& right, const ByColumn& by_column,
                                  int inner, Dst& destination) {
  if constexpr (Simdgroups == 0) {
    multiply_in_thread<M, N, Accumulates>(left, right, inner, destination);
  } else {
    with_sums<M, N, Simdgroups, Accumulates>(
        destination, [&](const auto& part, uint lane, auto* sums) {
          using Part = Bands<M, N, Simdgroups>;
          if constexpr (!same<Factor, float> && is_for_warpgroups<M, N, Simdgroups>() &&
                        RingOf<sizeof(Factor), M, N, Inner>::is_possible) {
            multiply_by_warpgroups<Factor, M, N, Inner, Simdgroups, LeftDeep, RightDeep>(
                left, by_column, inner, sums);
          } else if constexpr (Simdgroups > 1 && !same<Factor, float> &&
                               StagesOf<M, N, Simdgroups>::depth != 0) {
            multiply_staged<Factor, M, N, Simdgroups, LeftDeep, RightDeep>(left, by_column, inner,
                                                                           sums);
          } else if constexpr (Simdgroups > 1 && same<Factor, float> &&
                               StagesOf<M, N, Simdgroups>::depth_of_words != 0) {
            add_staged_products<metal::remove_pointer_t<decltype(sums)>, M, N, Simdgroups, LeftDeep,
                                RightDeep>(left, by_column, inner, sums);
          } else {
            multiply_in_place<Factor, WarpTile<Part::rows, Part::columns>, 0>(
                LeftInMemory<Left>{left, part.row, lane},
                RightInMemory<Right>{right, part.column, lane}, inner, sums);
          }
        });
  }
}

template <matmul2d_descriptor D, class Scope, class L, class R, class Dst>
MSL_INLINE void multiply_tiles(L& left, R& right, Dst& destination) {
  constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  constexpr bool accumulates = D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate;
  using LE = element_of_operand_t<L>;
  using RE = element_of_operand_t<R>;
  using E = typename Dst::value_type;
  constexpr bool scales = has_scales<L>() || has_scales<R>();
  if constexpr (is_staged<R>) {
    multiply_staged_lines<D>(left, right, destination);
  } else if constexpr (is_tensor<L> && is_tensor<R>) {
    using Factor = typename FactorInMemory<D, simdgroups, LE, RE, E, scales>::type;
    const int inner = int(inner_size<D>(left, right));
    const auto a = tile_view(view_of(left, D.transpose_left), D.m, inner);
    const auto b = tile_view(view_of(right, D.transpose_right), inner, D.n);
    const auto by_column = tile_view(view_of(right, !D.transpose_right), D.n, inner);
    multiply_matrices<Factor, D.m, D.n, has_dynamic_k(D) ? 0 : D.k, simdgroups, accumulates,
                      !D.transpose_left, D.transpose_right>(a, b, by_column, inner, destination);
  } else {
    using Factor = typename FactorOf<LE, RE, E, scales>::type;
    with_sums<D.m, D.n, 1, accumulates>(destination, [&](const auto&, uint lane, auto* sums) {
      with_left<D>(left, lane, [&](const auto& a) {
        with_right<Factor, D>(right, lane, [&](const auto& b) {
          multiply_in_place<Factor, WarpTile<D.m, D.n>, D.k>(a, b, D.k, sums);
        });
      });
    });
  }
}

// ---- reductions ---------------------------------------------------------------------------------

template <int Dimension, class Source, class Destination, class Operation, class E>
MSL_INLINE void reduce_tile(Source& source, Destination& destination, Operation operation,
                            E identity) {
  using mpp::tensor_ops::reduction_operation;
  using From = typename Source::layout;
  using To = typename Destination::layout;
  using Wide = metal::conditional_t<same<E, int>, int, float>;
  constexpr int rows = From::descriptor.m, columns = From::descriptor.n;
  using Tile = WarpTile<rows, columns>;
  const Lanes lanes = whole_simdgroup();
  Wide elements[Tile::capacity];
  to_warp_from<rows, columns>(source, elements);

  const auto combine = [&](Wide a, Wide b) {
    return operation == reduction_operation::sum   ? Sum::combine(a, b)
           : operation == reduction_operation::max ? metal::max(a, b)
                                                   : metal::min(a, b);
  };
  // Reduces the lane's own rows or columns, then across the lanes that share them.
  constexpr int length = Dimension == 0 ? rows : columns;
  constexpr int mine = Dimension == 0 ? Tile::down * 2 : Tile::across * 4;
  // Two of each, so that only every other operation waits for the one before.
  Wide parts[mine][2] = {};
  bool begun[mine][2] = {};
  MSL_UNROLLED
  for (int slot = 0; slot < Tile::capacity; ++slot) {
    // In tiles whose sides are multiples of 8, a slot exists in all lanes or in none.
    if (Tile::row_of_slot(uint(slot)) >= rows || Tile::column_of_slot(uint(slot)) >= columns)
      continue;
    const int fragment = slot / 8;
    const int i = Dimension == 0 ? fragment / Tile::across * 2 + slot % 8 / 4
                                 : fragment % Tile::across * 4 + slot % 4;
    const int part = slot / 2 & 1;
    parts[i][part] = begun[i][part] ? combine(parts[i][part], elements[slot]) : elements[slot];
    begun[i][part] = true;
  }
  Wide partial[mine];
  MSL_UNROLLED
  for (int i = 0; i < mine; ++i) {
    partial[i] = !begun[i][1]   ? parts[i][0]
                 : !begun[i][0] ? parts[i][1]
                                : combine(parts[i][0], parts[i][1]);
    MSL_UNROLLED
    for (uint distance = Dimension == 0 ? 1 : 4; distance < (Dimension == 0 ? 4u : 32u);
         distance *= 2) {
      partial[i] = combine(partial[i], Wide(::__shfl_xor_sync(~0u, partial[i], int(distance))));
    }
  }
#if MSL_COOPERATIVE_LAYOUT == 16
  if constexpr (Dimension == 0) {
    MSL_UNROLLED
    for (int i = 0; i < mine; ++i) {
      destination[ushort(i)] = E(combine(Wide(identity), partial[i]));
    }
    return;
  }
#endif
  E results[length];
  MSL_UNROLLED
  for (int at = 0; at < length; ++at) {
    const uint lane = Dimension == 0 ? uint(at % 8) << 2 : uint(at) / 2 & 3;
    const int i = Dimension == 0 ? at / 8 : at / 16 * 4 + at / 8 % 2 * 2 + at % 2;
    results[at] = E(combine(Wide(identity), from_lane(lanes, partial[i], abi::lane_of(lane))));
  }
  MSL_UNROLLED
  for (int slot = 0; slot < To::capacity; ++slot) {
    const Coordinates c = To::coordinates(lanes.lane, uint(slot));
    if (c.exists) destination[ushort(slot)] = results[c.at[0]];
  }
}

}  // namespace msl::msl_impl
