// mpp::tensor_ops::matmul2d: tile GEMM.
//
// left has the extents (k, m), right (n, k) and the destination (n, m), innermost first; those of a
// transposed operand are swapped.
#pragma once

#include <msl/tensor_ops/element_types.h>
#include <msl/tensor_ops/layout.h>
#include <msl/tensor_ops/matrix_view.h>

#ifndef MSL_METAL_VERSION
#define MSL_METAL_VERSION 400
#endif

namespace msl::mpp::tensor_ops {

template <class T>
inline constexpr T dynamic_length_v = metal::numeric_limits<T>::max();

enum class reduction_operation { sum, max, min };

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;

  MSL_INLINE constexpr matmul2d_descriptor(int rows, int columns,
                                           int inner = static_cast<int>(metal::dynamic_extent),
                                           bool is_left_transposed = false,
                                           bool is_right_transposed = false,
                                           bool is_relaxed = false, mode how = mode::multiply)
      : m(rows),
        n(columns),
        k(inner),
        transpose_left(is_left_transposed),
        transpose_right(is_right_transposed),
        relaxed_precision(is_relaxed),
        matmul_mode(how) {}
};

}  // namespace msl::mpp::tensor_ops

namespace msl::msl_impl {

using metal::cooperative_tensor;
using metal::dextents;
using mpp::tensor_ops::matmul2d_descriptor;

constexpr bool operator==(const matmul2d_descriptor& a, const matmul2d_descriptor& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.transpose_left == b.transpose_left &&
         a.transpose_right == b.transpose_right && a.relaxed_precision == b.relaxed_precision &&
         a.matmul_mode == b.matmul_mode;
}
constexpr bool has_dynamic_k(const matmul2d_descriptor& d) {
  return d.k == -1 || d.k == mpp::tensor_ops::dynamic_length_v<int>;
}
constexpr bool is_one_of(int value, int a, int b) { return value == a || value == b; }

template <matmul2d_descriptor D, class Scope>
constexpr bool check_descriptor() {
  constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  if constexpr (simdgroups == 0) {
    static_assert(D.m == 1 || D.m == 2 || D.m == 4 || (D.m > 0 && D.m % 8 == 0),
                  "M must be 1, 2, 4 or a multiple of 8 with execution_thread");
    static_assert(D.n == 1 || D.n == 2 || D.n == 4 || (D.n > 0 && D.n % 8 == 0),
                  "N must be 1, 2, 4 or a multiple of 8 with execution_thread");
  } else {
    static_assert(D.m > 0 && D.m % 8 == 0, "M must be a multiple of 8 or 16");
    static_assert(D.n > 0 && D.n % 8 == 0, "N must be a multiple of 8 or 16");
    static_assert(D.m % 16 == 0 || D.n % 16 == 0,
                  "At least one of M or N must be a multiple of 16");
  }
  static_assert(has_dynamic_k(D) || (D.k > 0 && D.k % 16 == 0),
                "K must be dynamic or a multiple of 16");
  return true;
}

// ---- layouts ------------------------------------------------------------------------------------

// Returns true if each slot of the threads of a scope holds one of `elements` elements.
constexpr bool is_full_tile(int capacity, int simdgroups, int elements) {
  return capacity * (simdgroups == 0 ? 1 : simdgroups * 32) == elements;
}

enum class Role { kLeft, kRight, kDestination, kRowReduction, kColumnReduction };

// L, R: the operands' types; for inputs, with E, element types.
template <matmul2d_descriptor D, class Scope, class L, class R>
struct DestinationLayout {
  static constexpr Role role = Role::kDestination;
  static constexpr matmul2d_descriptor descriptor = D;
  using Left = L;
  using Right = R;
  static constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  using Tile = ScopeTile<D.m, D.n, simdgroups>;
  static constexpr int rank = 2, capacity = Tile::capacity;
  static constexpr bool is_full = is_full_tile(capacity, simdgroups, D.m* D.n);
  static constexpr bool expands = true;
  static MSL_INLINE constexpr Coordinates coordinates(uint thread, uint slot) {
    const TilePlace in = Tile::place(thread, slot);
    return {{in.column, in.row}, in.exists};
  }
  static MSL_INLINE constexpr bool stores(uint, uint) { return true; }
};
template <matmul2d_descriptor D, class Scope, class L, class R, class E>
struct LeftInputLayout {
  static constexpr Role role = Role::kLeft;
  using Left = L;
  using Right = R;
  using Result = E;
  static constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  using Tile = ScopeTile<D.m, D.k, simdgroups, D.transpose_left, Operand::kLeft>;
  static constexpr int rank = 2, capacity = Tile::capacity;
  static constexpr bool is_full = is_full_tile(capacity, simdgroups, D.m* D.k);
  static constexpr bool expands = false;
  static MSL_INLINE constexpr Coordinates coordinates(uint thread, uint slot) {
    const TilePlace in = Tile::place(thread, slot);
    return D.transpose_left ? Coordinates{{in.row, in.column}, in.exists}
                            : Coordinates{{in.column, in.row}, in.exists};
  }
  static MSL_INLINE constexpr bool stores(uint, uint) { return true; }
};
template <matmul2d_descriptor D, class Scope, class L, class R, class E>
struct RightInputLayout {
  static constexpr Role role = Role::kRight;
  using Left = L;
  using Right = R;
  using Result = E;
  static constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  using Tile = ScopeTile<D.k, D.n, simdgroups, D.transpose_right, Operand::kRight>;
  static constexpr int rank = 2, capacity = Tile::capacity;
  static constexpr bool is_full = is_full_tile(capacity, simdgroups, D.k* D.n);
  static constexpr bool expands = false;
  static MSL_INLINE constexpr Coordinates coordinates(uint thread, uint slot) {
    const TilePlace in = Tile::place(thread, slot);
    return D.transpose_right ? Coordinates{{in.row, in.column}, in.exists}
                             : Coordinates{{in.column, in.row}, in.exists};
  }
  static MSL_INLINE constexpr bool stores(uint, uint) { return true; }
};

// The result of reducing each row (dimension 0) or column (dimension 1) of a destination. Every
// thread has all of it; in scrambled layouts, rotated by a number that depends on the seed, and
// with an additional slot.
template <int Dimension, matmul2d_descriptor D, class Scope, class L, class R>
struct ReductionLayout {
  static constexpr Role role = Dimension == 0 ? Role::kRowReduction : Role::kColumnReduction;
  static constexpr matmul2d_descriptor descriptor = D;
  using Left = L;
  using Right = R;
  static constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  static constexpr int length = Dimension == 0 ? D.m : D.n;
  static constexpr bool is_scrambled = MSL_COOPERATIVE_LAYOUT == 0;
  static constexpr int first = is_scrambled ? (MSL_COOPERATIVE_SEED % 7 + 3) % length : 0;
  static constexpr int rank = 1, capacity = length + is_scrambled;
  static constexpr bool is_full = false;
  static constexpr bool expands = true;
  static MSL_INLINE constexpr Coordinates coordinates(uint, uint slot) {
    return {{(int(slot) + first) % length, 0}, slot < uint(length)};
  }
  static MSL_INLINE constexpr bool stores(uint thread, uint) { return thread == 0; }

  // Returns the slot of the tile's element that an iterator points to.
  template <class Iterator,
            class Source = typename metal::remove_const_t<
                metal::remove_reference_t<decltype(*Iterator().owner)>>::layout,
            class = metal::enable_if_t<Source::role == Role::kDestination>>
  static MSL_INLINE uint map_index(const Iterator& of) {
    static_assert(simdgroups == 1 && Source::simdgroups == 1,
                  "map_iterator requires a single SIMD group");
    static_assert(Dimension == 0 ? Source::descriptor.m == D.m : Source::descriptor.n == D.n,
                  "Source and destination must have the same number of rows or columns");
    const Coordinates c = Source::coordinates(of.owner->msl_thread(), of._idx);
    return uint((c.at[Dimension == 0 ? 1 : 0] + length - first) % length);
  }
};

#if MSL_COOPERATIVE_LAYOUT == 16
// A lane has the reductions of the rows of which it has elements. The slot of a row depends only on
// the slot of the tile, not on the lane.
template <matmul2d_descriptor D, class Scope, class L, class R>
struct ReductionLayout<0, D, Scope, L, R> {
  static constexpr Role role = Role::kRowReduction;
  static constexpr matmul2d_descriptor descriptor = D;
  using Left = L;
  using Right = R;
  static constexpr int simdgroups = ScopeOf<Scope>::simdgroups;
  static constexpr int across = WarpTile<D.m, D.n>::across;
  static constexpr int rank = 1, capacity = WarpTile<D.m, D.n>::down * 2;
  static constexpr bool is_full = false;
  static constexpr bool expands = true;
  static MSL_INLINE constexpr Coordinates coordinates(uint thread, uint slot) {
    const int row = WarpTile<D.m, D.n>::row_of_lane(abi::warp_lane_of(thread & 31)) + int(slot) * 8;
    return {{row, 0}, D.m % 16 == 0 || row < D.m};
  }
  static MSL_INLINE constexpr bool stores(uint thread, uint) {
    return WarpTile<D.m, D.n>::column_of_lane(abi::warp_lane_of(thread & 31)) == 0;
  }

  template <class Iterator,
            class Source = typename metal::remove_const_t<
                metal::remove_reference_t<decltype(*Iterator().owner)>>::layout,
            class = metal::enable_if_t<Source::role == Role::kDestination>>
  static MSL_INLINE uint map_index(const Iterator& of) {
    static_assert(simdgroups == 1 && Source::simdgroups == 1,
                  "map_iterator requires a single SIMD group");
    static_assert(Source::descriptor.m == D.m,
                  "Source and destination must have the same number of rows or columns");
    constexpr uint source_across = WarpTile<D.m, Source::descriptor.n>::across;
    return uint(of._idx) / 8 / source_across * 2 + uint(of._idx) % 8 / 4;
  }
};
#endif

// ---- operands -----------------------------------------------------------------------------------

// Operands that only some targets have (cuda/staged_lines.h).
template <class T>
inline constexpr bool is_staged = false;

template <class T>
struct layout_of {
  typedef void type;
};
template <class E, class X, class L>
struct layout_of<cooperative_tensor<E, X, L>> {
  typedef L type;
};
template <class T>
constexpr bool has_role(Role role) {
  if constexpr (is_cooperative<T>) {
    return layout_of<T>::type::role == role;
  } else {
    return false;
  }
}
// The element type of an operand of type T; T itself if it is one.
template <class T>
struct element_of_operand {
  typedef metal::remove_cv_t<T> type;
};
template <class E, class X, class D, class... Tags>
struct element_of_operand<metal::tensor<E, X, D, Tags...>> {
  typedef metal::remove_cv_t<E> type;
};
template <class E, class X, class L>
struct element_of_operand<cooperative_tensor<E, X, L>> {
  typedef E type;
};
template <class T>
using element_of_operand_t = typename element_of_operand<metal::remove_cv_t<T>>::type;

template <class T>
constexpr bool check_tensor_operand() {
  static_assert(T::get_rank() == 2, "Operand must have rank 2");
  static_assert(same<typename T::index_type, int>, "Index type must be int");
  return true;
}
// Checks the plane of scales of an operand: its blocks run along K.
template <class T>
constexpr bool check_scales() {
  if constexpr (T::Planes::has_scales) {
    using Planes = typename T::Planes;
    static_assert(
        same<metal::remove_cv_t<typename Planes::ScaleType>, metal::metal_fp8_ue8m0_format>,
        "Scale data type must be metal_fp8_ue8m0_format");
    static_assert(Planes::block[0] == 32, "Scale block size 0 must be 32");
    static_assert(Planes::block[1] == 1, "Scale block size 1 must be 1");
  }
  return T::Planes::has_scales;
}
template <class E>
constexpr bool is_input_element() {
  constexpr Element kind = element_of_product<E>;
  return kind == Element::kUint8 || kind == Element::kInt8 || kind == Element::kFloat ||
         kind == Element::kHalf || kind == Element::kBfloat;
}
template <class E>
constexpr bool is_destination_element() {
  constexpr Element kind = element_of_product<E>;
  return kind == Element::kFloat || kind == Element::kHalf || kind == Element::kBfloat ||
         kind == Element::kInt32;
}

template <matmul2d_descriptor D, class Scope, class LE, class RE, class E>
constexpr bool check_input_tensor() {
  static_assert(ScopeOf<Scope>::simdgroups == 1,
                "Input cooperative tensors require a single SIMD group");
  static_assert(!has_dynamic_k(D),
                "Inner dimension cannot be dynamic with input cooperative tensors");
  static_assert(is_destination_element<E>(),
                "cooperative tensor destination data type can only be one of "
                "float/half/bfloat/int32_t");
  return true;
}
template <class E>
constexpr bool check_input_element() {
  static_assert(!is_format<E>, "Input cooperative tensor element type cannot be a format type");
  static_assert(is_input_element<E>(),
                "cooperative tensor source data type can only be one of "
                "uint8_t/int8_t/uint4b_format/int4b_format/float/half/bfloat");
  return true;
}
template <class Coord>
constexpr bool check_coordinate() {
  static_assert(same<Coord, int>, "coord_type must be int");
  return true;
}

template <matmul2d_descriptor D, class Scope, bool IsLeft, class Input, class Source>
constexpr bool check_conversion() {
  static_assert(has_role<Source>(Role::kDestination),
                "Source must be matmul2d cooperative destination tensor");
  using From = typename layout_of<Source>::type;
  static_assert(same<typename Source::index_type, int>, "src_extents::index_type must be int");
  static_assert(From::simdgroups == 1 && ScopeOf<Scope>::simdgroups == 1,
                "Input cooperative tensors require a single SIMD group");
  if constexpr (IsLeft) {
    static_assert(same<typename Source::element_type, Input>,
                  "Source cooperative tensor element type must match matmul2d left input element "
                  "type");
    static_assert(From::descriptor.m == D.m, "Source height must match matmul2d op height");
    static_assert(From::descriptor.n == D.k, "Source width must match matmul2d op inner dimension");
    static_assert(!D.transpose_left, "Input cooperative tensor cannot be transposed");
  } else {
    static_assert(same<typename Source::element_type, Input>,
                  "Source cooperative tensor element type must match matmul2d right input element "
                  "type");
    static_assert(From::descriptor.m == D.k,
                  "Source height must match matmul2d op inner dimension");
    static_assert(From::descriptor.n == D.n, "Source width must match matmul2d op width");
    static_assert(!D.transpose_right, "Input cooperative tensor cannot be transposed");
  }
  return true;
}
// Returns true if each thread has the same elements in the same slots.
template <class To, class From>
MSL_INLINE constexpr bool is_same_tile() {
  if constexpr (MSL_COOPERATIVE_LAYOUT == 0 || To::capacity != From::capacity) {
    return false;
  } else {
    return same<typename To::Tile, typename From::Tile>;
  }
}

template <matmul2d_descriptor D, class Scope, class L, class R, class Dst>
constexpr bool check_operands() {
  static_assert(ScopeOf<Scope>::exists, "Scope template argument should be of op_scope type");
  constexpr bool cooperative_left = has_role<L>(Role::kLeft);
  constexpr bool cooperative_right = has_role<R>(Role::kRight);
  static_assert(is_tensor<L> || cooperative_left || is_staged<L>,
                "Left operand must be a tensor or matmul2d left input cooperative tensor");
  static_assert(is_tensor<R> || cooperative_right || is_staged<R>,
                "Right operand must be a tensor or matmul2d right input cooperative tensor");
  static_assert(is_tensor<Dst> || has_role<Dst>(Role::kDestination),
                "Destination operand must be a tensor or matmul2d destination cooperative tensor");
  using LE = element_of_operand_t<L>;
  using RE = element_of_operand_t<R>;
  using E = element_of_operand_t<Dst>;
  if constexpr (is_tensor<L>) check_tensor_operand<L>();
  if constexpr (is_tensor<R>) check_tensor_operand<R>();
  if constexpr (is_tensor<Dst>) check_tensor_operand<Dst>();
  if constexpr (is_tensor<L>) {
    static_assert(!check_scales<L>() || !D.transpose_left,
                  "Left tensor must not be transposed if it has scale factors");
  }
  if constexpr (is_tensor<R>) {
    static_assert(!check_scales<R>() || D.transpose_right,
                  "Right tensor must be transposed if it has scale factors");
  }
  if constexpr (is_tensor<Dst>) {
    static_assert(!Dst::Planes::has_scales, "Destination tensor cannot have scale factors");
  }
  static_assert(is_product(element_of_product<LE>, element_of_product<RE>, element_of_product<E>,
                           MSL_METAL_VERSION >= 410),
                "Unsupported type");
  static_assert(has_dynamic_k(D) || D.k % 32 == 0 ||
                    !(is_less_than_a_byte(element_of_product<LE>) ||
                      is_less_than_a_byte(element_of_product<RE>)),
                "K must be dynamic or a multiple of 32 with sub-byte element types");
  if constexpr (cooperative_left) {
    using Layout = typename layout_of<L>::type;
    static_assert(same<typename Layout::Left, LE> && same<typename Layout::Right, RE> &&
                      same<typename Layout::Result, E>,
                  "Input types must match cooperative tensor types");
    static_assert(Layout::simdgroups == 1 && ScopeOf<Scope>::simdgroups == 1,
                  "Input cooperative tensors require a single SIMD group");
  }
  if constexpr (cooperative_right) {
    using Layout = typename layout_of<R>::type;
    static_assert(same<typename Layout::Left, LE> && same<typename Layout::Right, RE> &&
                      same<typename Layout::Result, E>,
                  "Input types must match cooperative tensor types");
    static_assert(Layout::simdgroups == 1 && ScopeOf<Scope>::simdgroups == 1,
                  "Input cooperative tensors require a single SIMD group");
  }
  if constexpr (cooperative_left && cooperative_right) {
    static_assert(is_one_of(D.m, 16, 32),
                  "M must be 16 or 32 if both inputs are cooperative tensors");
    static_assert(is_one_of(D.n, 16, 32),
                  "N must be 16 or 32 if both inputs are cooperative tensors");
    static_assert(is_one_of(D.k, 16, 32),
                  "K must be 16 or 32 if both inputs are cooperative tensors");
    static_assert(D.m == 32 || D.n == 32 || D.k == 32,
                  "At least one of M, N, or K must be 32 if both inputs are cooperative tensors");
  }
  if constexpr (is_cooperative<Dst>) {
    using Layout = typename layout_of<Dst>::type;
    static_assert(Layout::descriptor.m == D.m && Layout::descriptor.n == D.n &&
                      Layout::simdgroups == ScopeOf<Scope>::simdgroups,
                  "Destination cooperative tensor must be of the same operation");
  }
  return true;
}

// Returns K, the number of products that are summed for an element.
template <matmul2d_descriptor D, class L, class R>
MSL_INLINE long inner_size(const L& left, const R& right) {
  if constexpr (!has_dynamic_k(D)) {
    return D.k;
  } else {
    const long of_left = left.get_extent(D.transpose_left ? 1 : 0);
    const long of_right = right.get_extent(D.transpose_right ? 0 : 1);
    return of_left < of_right ? of_left : of_right;
  }
}

template <class Source, class Destination, Role Kind>
constexpr void check_reduction() {
  static_assert(Source::role == Role::kDestination && Destination::role == Kind,
                "Source must be a matmul2d destination, and destination a matmul2d reduction "
                "destination cooperative tensor");
  static_assert(Source::descriptor == Destination::descriptor,
                "Source and destination matmul2d descriptor must match");
  static_assert(same<typename Source::Left, typename Destination::Left> &&
                    same<typename Source::Right, typename Destination::Right>,
                "Source and destination operand types must match");
}

}  // namespace msl::msl_impl

#if defined(__CUDACC_RTC__)
#include <msl/cuda/matmul2d.h>
#else
#include <msl/host/matmul2d.h>
#endif

namespace msl::mpp::tensor_ops {

template <matmul2d_descriptor Descriptor, class Scope, class... Args>
class matmul2d {
  static_assert(msl_impl::ScopeOf<Scope>::exists,
                "Scope template argument should be of op_scope type");
  static_assert(msl_impl::check_descriptor<Descriptor, Scope>());
  template <class E, class Coord, int Rank, class Layout>
  using Cooperative = metal::cooperative_tensor<E, metal::dextents<Coord, Rank>, Layout>;

 public:
  static constexpr matmul2d_descriptor descriptor = Descriptor;
  using scope = Scope;

  template <class LE, class RE, class E, class Coord = int>
  using cooperative_tensor_left_input_t =
      Cooperative<LE, Coord, 2, msl_impl::LeftInputLayout<Descriptor, Scope, LE, RE, E>>;
  template <class LE, class RE, class E, class Coord = int>
  using cooperative_tensor_right_input_t =
      Cooperative<RE, Coord, 2, msl_impl::RightInputLayout<Descriptor, Scope, LE, RE, E>>;
  template <class L, class R, class E, class Coord = int>
  using cooperative_tensor_destination_t =
      Cooperative<E, Coord, 2,
                  msl_impl::DestinationLayout<Descriptor, Scope, msl_impl::element_of_operand_t<L>,
                                              msl_impl::element_of_operand_t<R>>>;
  template <class L, class R, class E, class Coord = int>
  using cooperative_tensor_row_reduction_destination_t =
      Cooperative<E, Coord, 1,
                  msl_impl::ReductionLayout<0, Descriptor, Scope, msl_impl::element_of_operand_t<L>,
                                            msl_impl::element_of_operand_t<R>>>;
  template <class L, class R, class E, class Coord = int>
  using cooperative_tensor_column_reduction_destination_t =
      Cooperative<E, Coord, 1,
                  msl_impl::ReductionLayout<1, Descriptor, Scope, msl_impl::element_of_operand_t<L>,
                                            msl_impl::element_of_operand_t<R>>>;

  // destination = left right, or + destination. All threads of the scope call it together.
  template <class L, class R, class Dst>
  MSL_INLINE void run(L& left, R& right, Dst& destination) const {
    static_assert(msl_impl::check_operands<Descriptor, Scope, metal::remove_cv_t<L>,
                                           metal::remove_cv_t<R>, Dst>());
    msl_impl::multiply_tiles<Descriptor, Scope>(left, right, destination);
  }

  template <class LE, class RE, class E, class Coord = int>
  MSL_INLINE auto get_left_input_cooperative_tensor() const {
    static_assert(msl_impl::check_input_tensor<Descriptor, Scope, LE, RE, E>());
    static_assert(msl_impl::check_input_element<LE>() && msl_impl::check_coordinate<Coord>());
    return cooperative_tensor_left_input_t<LE, RE, E, Coord>();
  }
  template <class LE, class RE, class E, class Coord = int>
  MSL_INLINE auto get_right_input_cooperative_tensor() const {
    static_assert(msl_impl::check_input_tensor<Descriptor, Scope, LE, RE, E>());
    static_assert(msl_impl::check_input_element<RE>() && msl_impl::check_coordinate<Coord>());
    return cooperative_tensor_right_input_t<LE, RE, E, Coord>();
  }
  // Returns a left input with the elements of a destination, which must have the same layout.
  template <class LE, class RE, class E, class S, class X, class Y>
  MSL_INLINE auto get_left_input_cooperative_tensor(
      const metal::cooperative_tensor<S, X, Y>& source) const {
    static_assert(msl_impl::check_conversion<Descriptor, Scope, true, LE,
                                             metal::cooperative_tensor<S, X, Y>>());
    return converted(get_left_input_cooperative_tensor<LE, RE, E>(), source);
  }
  template <class LE, class RE, class E, class S, class X, class Y>
  MSL_INLINE auto get_right_input_cooperative_tensor(
      const metal::cooperative_tensor<S, X, Y>& source) const {
    static_assert(msl_impl::check_conversion<Descriptor, Scope, false, RE,
                                             metal::cooperative_tensor<S, X, Y>>());
    return converted(get_right_input_cooperative_tensor<LE, RE, E>(), source);
  }
  template <class LE, class RE, class E, class S, class X, class Y>
  MSL_INLINE bool is_compatible_as_left_input(
      const metal::cooperative_tensor<S, X, Y>& source) const {
    static_assert(msl_impl::check_conversion<Descriptor, Scope, true, LE,
                                             metal::cooperative_tensor<S, X, Y>>());
    return msl_impl::is_same_tile<typename cooperative_tensor_left_input_t<LE, RE, E>::layout, Y>();
  }
  template <class LE, class RE, class E, class S, class X, class Y>
  MSL_INLINE bool is_compatible_as_right_input(
      const metal::cooperative_tensor<S, X, Y>& source) const {
    static_assert(msl_impl::check_conversion<Descriptor, Scope, false, RE,
                                             metal::cooperative_tensor<S, X, Y>>());
    return msl_impl::is_same_tile<typename cooperative_tensor_right_input_t<LE, RE, E>::layout,
                                  Y>();
  }

  template <class L, class R, class E, class Coord = int>
  MSL_INLINE auto get_destination_cooperative_tensor() const {
    static_assert(msl_impl::is_destination_element<E>(),
                  "cooperative tensor destination data type can only be one of "
                  "float/half/bfloat/int32_t");
    return cooperative_tensor_destination_t<L, R, E, Coord>();
  }
  template <class L, class R, class E, class Coord = int>
  MSL_INLINE auto get_row_reduction_destination_cooperative_tensor() const {
    return cooperative_tensor_row_reduction_destination_t<L, R, E, Coord>();
  }
  template <class L, class R, class E, class Coord = int>
  MSL_INLINE auto get_column_reduction_destination_cooperative_tensor() const {
    return cooperative_tensor_column_reduction_destination_t<L, R, E, Coord>();
  }

#if !defined(__CUDACC_RTC__)
  // The forms for all threads of a group together (host/group.h).
  template <class K, class Threads, class M, class P, class L, class R, class Dst>
  MSL_INLINE void run_in_group(K, const Threads& threads, const M& mask, const P& pack, L&, R&,
                               Dst&) const {
    static_assert(msl_impl::check_operands<Descriptor, Scope, metal::remove_cv_t<L>,
                                           metal::remove_cv_t<R>, Dst>());
    msl_impl::multiply_tiles_in_group<Descriptor, Scope, L, R, Dst>(threads, mask, pack);
  }
#define MSL_CREATED_IN_GROUP(NAME)                                                                 \
  template <class L, class R, class E, class Coord = int, class K, class Threads, class M>         \
  MSL_INLINE auto get_##NAME##_cooperative_tensor_in_group(                                        \
      K, const Threads& threads, const M& mask, const msl_support::Pack<>&) const {                \
    using T = decltype(get_##NAME##_cooperative_tensor<metal::remove_reference_t<L>,               \
                                                       metal::remove_reference_t<R>, E, Coord>()); \
    return msl_impl::create_in_group<T>(threads, mask, [](T&, uint) {});                           \
  }
  MSL_CREATED_IN_GROUP(left_input)
  MSL_CREATED_IN_GROUP(right_input)
  MSL_CREATED_IN_GROUP(destination)
  MSL_CREATED_IN_GROUP(row_reduction_destination)
  MSL_CREATED_IN_GROUP(column_reduction_destination)
#undef MSL_CREATED_IN_GROUP
#define MSL_CONVERTED_IN_GROUP(NAME)                                                              \
  template <class L, class R, class E, class K, class Threads, class M, class P, class Source>    \
  MSL_INLINE auto get_##NAME##_cooperative_tensor_in_group(                                       \
      K, const Threads& threads, const M& mask, const P& pack, const Source& source) const {      \
    using T = decltype(get_##NAME##_cooperative_tensor<metal::remove_reference_t<L>,              \
                                                       metal::remove_reference_t<R>, E>(source)); \
    const auto sources = pack.template get<0>();                                                  \
    return msl_impl::create_in_group<T>(                                                          \
        threads, mask, [&](T& to, uint thread) { to = converted(to, sources[thread]); });         \
  }
  MSL_CONVERTED_IN_GROUP(left_input)
  MSL_CONVERTED_IN_GROUP(right_input)
#undef MSL_CONVERTED_IN_GROUP
#endif

 private:
  template <class To, class From>
  static MSL_INLINE To converted(To to, const From& from) {
    if constexpr (msl_impl::is_same_tile<typename To::layout, typename From::layout>()) {
      for (int slot = 0; slot < To::layout::capacity; ++slot) to[slot] = from[slot];
    }
    return to;
  }
};

// ---- reductions ---------------------------------------------------------------------------------

template <class E>
struct reduction_operation_identity {
  static constexpr E sum_identity = E(0);
  static constexpr E max_identity = metal::numeric_limits<E>::lowest();
  static constexpr E min_identity = metal::numeric_limits<E>::max();
};

// Reduces each row of a destination, starting from the identity. As in Apple's library, the
// identity is 0 for all operations unless another one is passed.
template <class E, class SX, class SL, class DX, class DL>
MSL_INLINE void reduce_rows(
    metal::cooperative_tensor<E, SX, SL>& source, metal::cooperative_tensor<E, DX, DL>& destination,
    reduction_operation operation = reduction_operation::sum,
    metal::type_identity_t<E> identity = reduction_operation_identity<E>::sum_identity) {
  static_assert(SL::simdgroups == 1 && DL::simdgroups == 1,
                "reduce_rows requires a single SIMD group");
  msl_impl::check_reduction<SL, DL, msl_impl::Role::kRowReduction>();
  msl_impl::reduce_tile<0>(source, destination, operation, identity);
}
template <class E, class SX, class SL, class DX, class DL>
MSL_INLINE void reduce_columns(
    metal::cooperative_tensor<E, SX, SL>& source, metal::cooperative_tensor<E, DX, DL>& destination,
    reduction_operation operation = reduction_operation::sum,
    metal::type_identity_t<E> identity = reduction_operation_identity<E>::sum_identity) {
  static_assert(SL::simdgroups == 1 && DL::simdgroups == 1,
                "reduce_columns requires a single SIMD group");
  msl_impl::check_reduction<SL, DL, msl_impl::Role::kColumnReduction>();
  msl_impl::reduce_tile<1>(source, destination, operation, identity);
}

#if !defined(__CUDACC_RTC__)
template <class K, class Threads, class M, class P, class Source, class... Others>
MSL_INLINE void reduce_rows_in_group(K, const Threads& threads, const M& mask, const P& pack,
                                     Source& source, Others&&... others) {
  msl_impl::reduce_tiles_in_group<0>(threads, mask, pack, source, others...);
}
template <class K, class Threads, class M, class P, class Source, class... Others>
MSL_INLINE void reduce_columns_in_group(K, const Threads& threads, const M& mask, const P& pack,
                                        Source& source, Others&&... others) {
  msl_impl::reduce_tiles_in_group<1>(threads, mask, pack, source, others...);
}
#endif

// Returns true if destination.map_iterator() takes iterators of source. As in Apple's library,
// reductions to columns are accepted only if the numbers of columns differ: a mistake with which
// programs have to live.
template <class SE, class SX, class SL, class DE, class DX, class DL>
MSL_INLINE constexpr bool is_iterator_compatible(const metal::cooperative_tensor<SE, SX, SL>&,
                                                 const metal::cooperative_tensor<DE, DX, DL>&) {
  if constexpr (SL::role != msl_impl::Role::kDestination || SL::simdgroups != 1 ||
                DL::simdgroups != 1 || !msl_impl::same<SE, DE>) {
    return false;
  } else if constexpr (DL::role == msl_impl::Role::kRowReduction) {
    return SL::descriptor.m == DL::descriptor.m;
  } else if constexpr (DL::role == msl_impl::Role::kColumnReduction) {
    return SL::descriptor.n != DL::descriptor.n;
  } else {
    return false;
  }
}

}  // namespace msl::mpp::tensor_ops
