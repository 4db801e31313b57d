// metal_cooperative_tensor: a tile whose elements are distributed over the threads of a scope.
#pragma once

#include <msl/execution.h>
#include <msl/simd.h>
#include <msl/tensor.h>

// The layout of tiles, a policy: 10 is that of Apple GPUs of family 10 (M5) and later, 8 that of
// earlier ones, 16 that of NVIDIA's tensor cores (for CUDA only), 0 a random bijection seeded by
// MSL_COOPERATIVE_SEED.
#ifndef MSL_COOPERATIVE_LAYOUT
#define MSL_COOPERATIVE_LAYOUT 10
#endif
#ifndef MSL_COOPERATIVE_SEED
#define MSL_COOPERATIVE_SEED 0
#endif

namespace msl::msl_impl {

// The element in a thread's slot: coordinates as in a tensor, innermost first.
struct Coordinates {
  int at[4];  // one per dimension
  bool exists;
};

// Returns the running thread's index in its scope: simdgroup * 32 + lane.
MSL_INLINE uint thread_in_scope(int simdgroups) {
  if (simdgroups == 0) return 0;
  return simdgroups == 1 ? lane_in_simdgroup() : index_in_threadgroup();
}

#if defined(__CUDACC_RTC__)
// cuda/matmul2d.h
template <class From, class Dst>
MSL_INLINE bool store_in_vectors(const From& from, const Dst& to);
#endif

}  // namespace msl::msl_impl

namespace msl::metal {

// Layout: rank, capacity (slots of each thread), is_full (true if each slot holds an element),
// simdgroups (of the scope, 0 for a thread), coordinates(thread, slot), whether load() expands
// dimensions of size 1, and stores(thread, slot): true if store() of that thread writes the
// element.
template <class ElementType, class Extents, class Layout>
struct cooperative_tensor {
  using element_type = ElementType;
  using value_type = ElementType;
  using extents_type = Extents;
  using index_type = typename Extents::index_type;
  using size_type = typename Extents::size_type;
  using rank_type = typename Extents::rank_type;
  using thread_index_type = uint16_t;
  using thread_size_type = uint16_t;
  using layout = Layout;

  template <class Owner, class Value>
  struct basic_iterator {
    Owner* owner;
    thread_index_type _idx;

    MSL_INLINE Value& operator*() const { return *owner->elements_.address(_idx); }
    MSL_INLINE Value* operator->() const { return owner->elements_.address(_idx); }
    MSL_INLINE basic_iterator& operator++() {
      ++_idx;
      return *this;
    }
    MSL_INLINE basic_iterator operator++(int) {
      const basic_iterator before = *this;
      ++_idx;
      return before;
    }
    friend MSL_INLINE bool operator==(const basic_iterator& a, const basic_iterator& b) {
      return a._idx == b._idx;
    }
    friend MSL_INLINE bool operator!=(const basic_iterator& a, const basic_iterator& b) {
      return a._idx != b._idx;
    }
    MSL_INLINE bool is_valid_element() const { return owner->is_valid_element(_idx); }
    MSL_INLINE auto get_multidimensional_index() const {
      return owner->get_multidimensional_index(_idx);
    }
  };
  using iterator = basic_iterator<cooperative_tensor, ElementType>;
  using const_iterator = basic_iterator<const cooperative_tensor, const ElementType>;

  MSL_INLINE cooperative_tensor()
      : cooperative_tensor(msl_impl::thread_in_scope(Layout::simdgroups)) {}

  static MSL_INLINE constexpr rank_type get_rank() { return Extents::rank(); }
  static MSL_INLINE constexpr thread_size_type get_capacity() { return Layout::capacity; }

  MSL_INLINE ElementType& operator[](thread_index_type slot) { return *elements_.address(slot); }
  MSL_INLINE const ElementType& operator[](thread_index_type slot) const {
    return *elements_.address(slot);
  }
  // Returns 0 where the slot has no element.
  MSL_INLINE ElementType get(thread_index_type slot) const {
    return is_valid_element(slot) ? *elements_.address(slot) : ElementType(0);
  }
  MSL_INLINE void set(thread_index_type slot, ElementType value) {
    if (is_valid_element(slot)) *elements_.address(slot) = value;
  }
  MSL_INLINE bool is_valid_element(thread_index_type slot) const {
    return slot < Layout::capacity &&
           (Layout::is_full || Layout::coordinates(thread_, slot).exists);
  }
  MSL_INLINE array<index_type, Extents::rank()> get_multidimensional_index(
      thread_index_type slot) const {
    const msl_impl::Coordinates coordinates = Layout::coordinates(thread_, slot);
    array<index_type, Extents::rank()> result;
    for (rank_type r = 0; r < Extents::rank(); ++r) result[r] = index_type(coordinates.at[r]);
    return result;
  }
  MSL_INLINE bool is_valid_element(const iterator& it) const { return is_valid_element(it._idx); }
  MSL_INLINE bool is_valid_element(const const_iterator& it) const {
    return is_valid_element(it._idx);
  }
  MSL_INLINE bool is_valid_element(const ElementType* element) const {
    return is_valid_element(thread_index_type(element - elements_.at));
  }
  MSL_INLINE auto get_multidimensional_index(const iterator& it) const {
    return get_multidimensional_index(it._idx);
  }
  MSL_INLINE auto get_multidimensional_index(const const_iterator& it) const {
    return get_multidimensional_index(it._idx);
  }
  MSL_INLINE auto get_multidimensional_index(const ElementType* element) const {
    return get_multidimensional_index(thread_index_type(element - elements_.at));
  }

  MSL_INLINE iterator begin() { return {this, 0}; }
  MSL_INLINE iterator end() { return {this, Layout::capacity}; }
  MSL_INLINE const_iterator begin() const { return {this, 0}; }
  MSL_INLINE const_iterator end() const { return {this, Layout::capacity}; }
  MSL_INLINE iterator get_iterator(thread_index_type slot) { return {this, slot}; }
  MSL_INLINE const_iterator get_iterator(thread_index_type slot) const { return {this, slot}; }
  MSL_INLINE iterator get_iterator(ElementType* element) {
    return {this, thread_index_type(element - elements_.at)};
  }
  MSL_INLINE const_iterator get_iterator(const ElementType* element) const {
    return {this, thread_index_type(element - elements_.at)};
  }
  // For a reduction: returns the position of the row or column that contains an element of the
  // reduced tile.
  template <class Iterator, class L = Layout>
  MSL_INLINE auto map_iterator(const Iterator& of) -> decltype(L::map_index(of), iterator()) {
    return {this, thread_index_type(L::map_index(of))};
  }

  // Loads from a tensor of the tile's shape, or with dimensions of size 1, which are broadcast; 0
  // beyond the tensor's extents.
  template <class T, class X, class D, class... Tags>
  MSL_INLINE void load(const tensor<T, X, D, Tags...>& source) {
    if constexpr (Layout::rank == 2) {
      static_assert(X::rank() == 1 || X::rank() == 2, "Source tensor must be rank 1 or 2");
    } else {
      static_assert(X::rank() == Layout::rank,
                    "Source tensor must be of the rank of the cooperative tensor");
    }
    static_assert(msl_impl::same<remove_cv_t<T>, ElementType>,
                  "Source tensor datatype does not match cooperative tensor");
    msl_impl::check_scope_operation<cooperative_tensor*>(Layout::simdgroups, "load");
    msl_impl::check_stride(source, "tensor");
    MSL_UNROLLED
    for (thread_index_type slot = 0; slot < Layout::capacity; ++slot) {
      msl_impl::Coordinates place = Layout::coordinates(thread_, slot);
      if (!place.exists) continue;
      for (size_t r = 0; r < X::rank(); ++r) {
        if (Layout::expands && source.get_extent(r) == 1) place.at[r] = 0;
      }
      *elements_.address(slot) =
          source.msl_has(place.at) ? source.msl_at(place.at) : ElementType(0);
    }
  }
  // Stores to a tensor; nothing is written beyond its extents.
  template <class T, class X, class D, class... Tags>
  MSL_INLINE void store(const tensor<T, X, D, Tags...>& destination) const {
    static_assert(X::rank() == Layout::rank,
                  "Destination tensor must be of the rank of the cooperative tensor");
    static_assert(msl_impl::same<T, ElementType>,
                  "Tensor datatype does not match cooperative tensor");
    msl_impl::check_scope_operation<const cooperative_tensor*>(Layout::simdgroups, "store");
    msl_impl::check_stride(destination, "tensor");
#if defined(__CUDACC_RTC__)
    if (msl_impl::store_in_vectors(*this, destination)) return;
#endif
    MSL_UNROLLED
    for (thread_index_type slot = 0; slot < Layout::capacity; ++slot) {
      const msl_impl::Coordinates place = Layout::coordinates(thread_, slot);
      if (place.exists && Layout::stores(thread_, slot) && destination.msl_has(place.at)) {
        destination.msl_at(place.at) = *elements_.address(slot);
      }
    }
  }

  MSL_INLINE uint msl_thread() const { return thread_; }
  // thread: in the scope.
  MSL_INLINE static cooperative_tensor msl_of_thread(uint thread) {
    return cooperative_tensor(thread);
  }

 private:
  MSL_INLINE explicit cooperative_tensor(uint thread) : elements_(thread), thread_(thread) {}

  msl_impl::OwnElements<ElementType, Layout> elements_;
  uint thread_;
};

}  // namespace msl::metal

namespace msl::msl_impl {

template <class T>
inline constexpr bool is_cooperative = false;
template <class E, class X, class L>
inline constexpr bool is_cooperative<metal::cooperative_tensor<E, X, L>> = true;

}  // namespace msl::msl_impl
