// metal_extents: the shape of a tensor, some of whose sizes are part of the type.
#pragma once

#include <msl/array.h>

namespace msl::metal {

// Marks a size that is not part of the type.
constexpr size_t dynamic_extent = size_t(-1);

template <class IndexType, size_t... E>
struct extents {
  static_assert(is_integral_v<IndexType>, "extents: the index type must be an integer type");
  using index_type = IndexType;
  using size_type = make_unsigned_t<IndexType>;
  using rank_type = size_t;

  static MSL_INLINE constexpr rank_type rank() { return sizeof...(E); }
  static MSL_INLINE constexpr rank_type rank_dynamic() {
    return (rank_type(0) + ... + rank_type(E == dynamic_extent));
  }
  static MSL_INLINE constexpr size_t static_extent(rank_type r) {
    constexpr size_t sizes[] = {E..., 0};
    return sizes[r];
  }
  MSL_INLINE constexpr index_type extent(rank_type r) const {
    const size_t size = static_extent(r);
    return size == dynamic_extent ? dynamic_[dynamic_index(r)] : index_type(size);
  }

  constexpr extents() = default;
  // Takes the dynamic sizes, in order.
  template <class... I, class = enable_if_t<sizeof...(I) != 0 && sizeof...(I) == rank_dynamic() &&
                                            (is_convertible_v<I, IndexType> && ...)>>
  MSL_INLINE constexpr explicit extents(I... sizes) : dynamic_{index_type(sizes)...} {}
  template <class I, size_t N, class = enable_if_t<N == rank_dynamic() && N != 0>>
  MSL_INLINE constexpr explicit extents(const array<I, N>& sizes) {
    for (size_t i = 0; i < N; ++i) dynamic_[i] = index_type(sizes[i]);
  }
  // Converts from extents of the same rank whose static sizes match or are dynamic here.
  template <class I, size_t... F,
            class = enable_if_t<sizeof...(F) == sizeof...(E) &&
                                ((E == dynamic_extent || F == dynamic_extent || E == F) && ...)>>
  MSL_INLINE constexpr extents(const extents<I, F...>& other) {
    for (rank_type r = 0; r < rank(); ++r) {
      if (static_extent(r) == dynamic_extent) {
        dynamic_[dynamic_index(r)] = index_type(other.extent(r));
      }
    }
  }

  template <class I, size_t... F>
  friend MSL_INLINE constexpr bool operator==(const extents& a, const extents<I, F...>& b) {
    if (sizeof...(E) != sizeof...(F)) return false;
    for (rank_type r = 0; r < sizeof...(E); ++r) {
      if (long(a.extent(r)) != long(b.extent(r))) return false;
    }
    return true;
  }

 private:
  static MSL_INLINE constexpr rank_type dynamic_index(rank_type r) {
    rank_type index = 0;
    for (rank_type i = 0; i < r; ++i) index += static_extent(i) == dynamic_extent;
    return index;
  }
  index_type dynamic_[rank_dynamic() == 0 ? 1 : rank_dynamic()] = {};
};

}  // namespace msl::metal

namespace msl::msl_impl {

template <class I, size_t Rank, size_t... E>
struct all_dynamic : all_dynamic<I, Rank - 1, E..., metal::dynamic_extent> {};
template <class I, size_t... E>
struct all_dynamic<I, 0, E...> {
  typedef metal::extents<I, E...> type;
};

}  // namespace msl::msl_impl

namespace msl::metal {

template <class IndexType, size_t Rank>
using dextents = typename msl_impl::all_dynamic<IndexType, Rank>::type;

template <class... I>
extents(I...) -> extents<int, (I(), dynamic_extent)...>;

}  // namespace msl::metal
