// metal_tensor: memory with a shape and strides. The first dimension is the innermost: a contiguous
// matrix of R rows and C columns has extents (C, R).
#pragma once

#include <msl/extents.h>
#include <msl/numeric_format.h>
#include <msl/tensor_checks.h>

namespace msl::metal {

// Tags of a tensor's description: contained in the tensor, or on the host, which passed a handle to
// the kernel.
struct tensor_handle {};
struct tensor_inline {};
// Tag of a slice of a handle, which also has an offset.
struct tensor_offset {};
// Tag of a tensor of small floats with a plane of scales: one for a block of elements.
struct tensor_plane_scales {};

template <class Plane, class Scale, size_t... Block>
struct tensor_blockwise;

template <class ElementType, class Extents, class Descriptor = tensor_handle, class... Tags>
struct tensor;

}  // namespace msl::metal

namespace msl::msl_impl {

// The location of an element: an address, or for formats of less than a byte that of the first byte
// and an element index.
template <class T, bool IsFormat = is_format<T>>
struct Place {
  typedef T* Handle;
  T* first;
  MSL_INLINE constexpr explicit Place(Handle at = nullptr) : first(at) {}
  MSL_INLINE constexpr Place shifted(long elements) const { return Place(first + elements); }
  MSL_INLINE constexpr T& at(long index) const { return first[index]; }
  MSL_INLINE constexpr Handle handle() const { return first; }
};
template <class F>
struct Place<F, true> {
  typedef metal::conditional_t<is_const<F>, const uchar*, uchar*> Handle;
  Handle first;
  long index = 0;
  MSL_INLINE constexpr explicit Place(Handle at = nullptr) : first(at) {}
  MSL_INLINE constexpr Place shifted(long elements) const {
    Place place = *this;
    place.index += elements;
    return place;
  }
  MSL_INLINE constexpr Handle handle() const { return first + index * Format<F>::bits / 8; }
  MSL_INLINE constexpr float value(long i) const {
    return Format<F>::decode(packed_code<F>(first, index + i));
  }
};

// No planes: a tensor without scales.
struct NoPlanes {
  static constexpr bool has_scales = false;
  MSL_INLINE constexpr NoPlanes shifted(const long*) const { return {}; }
  template <class Tensor>
  MSL_INLINE constexpr void place(const Tensor&) {}
};
// Scales, one for each block of elements; those of a row are contiguous.
template <class Scale, size_t... Block>
struct ScalePlane {
  using Plane = metal::tensor_blockwise<metal::tensor_plane_scales, Scale, Block...>;
  using ScaleType = Scale;
  static constexpr bool has_scales = true;
  static constexpr long block[sizeof...(Block) + 1] = {long(Block)..., 1};
  Plane plane{};
  long row_stride = 0;

  template <class Tensor>
  MSL_INLINE constexpr void place(const Tensor& of) {
    row_stride = (long(of.get_extent(0)) + block[0] - 1) / block[0];
  }
  // Returns the plane of a slice that begins at `origin`.
  MSL_INLINE constexpr ScalePlane shifted(const long* origin) const {
    ScalePlane result = *this;
    result.plane.first += origin[1] / block[1] * row_stride + origin[0] / block[0];
    return result;
  }
  MSL_INLINE constexpr float at(long i, long j) const {
    return Format<Scale>::decode(plane.first[j / block[1] * row_stride + i / block[0]]);
  }
};
template <class... Tags>
struct planes_of {
  typedef NoPlanes type;
};
template <class Scale, size_t... Block, class... Rest>
struct planes_of<metal::tensor_blockwise<metal::tensor_plane_scales, Scale, Block...>, Rest...> {
  typedef ScalePlane<Scale, Block...> type;
};
template <class First, class... Rest>
struct planes_of<First, Rest...> : planes_of<Rest...> {};

template <class T>
inline constexpr bool is_tensor = false;
template <class E, class X, class D, class... Tags>
inline constexpr bool is_tensor<metal::tensor<E, X, D, Tags...>> = true;

}  // namespace msl::msl_impl

namespace msl::metal {

template <class Plane, class Scale, size_t... Block>
struct tensor_blockwise {
  using data_handle_type = typename msl_impl::Place<Scale>::Handle;
  data_handle_type first;
  MSL_INLINE constexpr explicit tensor_blockwise(data_handle_type scales = nullptr)
      : first(scales) {}
};

// strides are in elements; the first one is 1.
template <class ElementType, class Extents, class Descriptor, class... Tags>
struct tensor {
  static_assert(msl_impl::same<Descriptor, tensor_handle> ||
                    msl_impl::same<Descriptor, tensor_inline>,
                "tensor: Descriptor template parameter must be one of tensor_handle or "
                "tensor_inline");
  static_assert(Extents::rank() <= 16, "tensor: the rank must not be larger than 16");
  using element_type = ElementType;
  using value_type = remove_cv_t<ElementType>;
  using extents_type = Extents;
  using index_type = typename Extents::index_type;
  using size_type = typename Extents::size_type;
  using rank_type = typename Extents::rank_type;
  using data_handle_type = typename msl_impl::Place<ElementType>::Handle;
  using descriptor_type = Descriptor;
  using Planes = typename msl_impl::planes_of<Tags...>::type;  // of this tensor

  constexpr tensor() = default;
  // A tensor of contiguous elements.
  MSL_INLINE constexpr tensor(data_handle_type data, const extents_type& extents)
      : place_(data), extents_(extents) {
    long stride = 1;
    for (rank_type r = 0; r < kRank; ++r) {
      strides_[r] = index_type(stride);
      stride *= long(extents.extent(r));
    }
    planes_.place(*this);
  }
  template <class I, size_t N>
  MSL_INLINE constexpr tensor(data_handle_type data, const extents_type& extents,
                              const array<I, N>& strides)
      : place_(data), extents_(extents) {
    static_assert(N == kRank, "tensor: as many strides as dimensions");
    for (rank_type r = 0; r < kRank; ++r) strides_[r] = index_type(strides[r]);
    planes_.place(*this);
  }
  template <class I, size_t N, class Scales>
  MSL_INLINE constexpr tensor(data_handle_type data, const extents_type& extents,
                              const array<I, N>& strides, const Scales& scales)
      : tensor(data, extents, strides) {
    planes_.plane = scales;
  }

  static MSL_INLINE constexpr rank_type get_rank() { return kRank; }
  static MSL_INLINE constexpr size_t get_static_extent(rank_type r) {
    return Extents::static_extent(r);
  }
  MSL_INLINE constexpr index_type get_extent(rank_type r) const { return extents_.extent(r); }
  MSL_INLINE constexpr index_type get_stride(rank_type r) const { return strides_[r]; }

  template <class... I, class = enable_if_t<sizeof...(I) == Extents::rank()>>
  MSL_INLINE constexpr auto& operator[](I... indices) const {
    static_assert(!msl_impl::is_format<ElementType>, "tensor: elements of a format have no type");
    const index_type at[] = {index_type(indices)...};
    return place_.at(offset(at));
  }
  template <class I, size_t N, class = enable_if_t<N == Extents::rank()>>
  MSL_INLINE constexpr auto& operator[](const array<I, N>& indices) const {
    static_assert(!msl_impl::is_format<ElementType>, "tensor: elements of a format have no type");
    index_type at[kRank] = {};
    for (rank_type r = 0; r < kRank; ++r) at[r] = index_type(indices[r]);
    return place_.at(offset(at));
  }
  // Beyond the extents load returns 0, and store does nothing.
  template <class... I, class = enable_if_t<sizeof...(I) == Extents::rank()>>
  MSL_INLINE constexpr value_type load(I... indices) const {
    const index_type at[] = {index_type(indices)...};
    return contains(at) ? value_type(place_.at(offset(at))) : value_type(0);
  }
  template <class... I, class = enable_if_t<sizeof...(I) == Extents::rank()>>
  MSL_INLINE constexpr void store(value_type value, I... indices) const {
    const index_type at[] = {index_type(indices)...};
    if (contains(at)) place_.at(offset(at)) = value;
  }

  // Returns the slice at `origin`: static extents are those of the slice, a dynamic one is the
  // remainder.
  template <auto... E, class... I,
            class = enable_if_t<sizeof...(E) == Extents::rank() && sizeof...(I) == sizeof...(E)>>
  MSL_INLINE constexpr auto slice(I... origin) const {
    return sliced<extents<index_type, size_t(E)...>>(origin...);
  }
  template <class... I, class = enable_if_t<sizeof...(I) == Extents::rank()>>
  MSL_INLINE constexpr auto slice(I... origin) const {
    return sliced<dextents<index_type, Extents::rank()>>(origin...);
  }

  // For operations on tensors.
  MSL_INLINE constexpr const msl_impl::Place<ElementType>& msl_place() const { return place_; }
  MSL_INLINE constexpr const Planes& msl_planes() const { return planes_; }
  // Returns true if an element may be accessed: checked for dynamic extents, promised by the
  // program for static ones.
  MSL_INLINE constexpr bool msl_has(const int* at) const {
    for (rank_type r = 0; r < kRank; ++r) {
      if (get_static_extent(r) == dynamic_extent && at[r] >= get_extent(r)) return false;
    }
    return true;
  }
  MSL_INLINE constexpr auto& msl_at(const int* at) const {
    long sum = 0;
    for (rank_type r = 0; r < kRank; ++r) sum += long(at[r]) * long(strides_[r]);
    return place_.at(sum);
  }

 private:
  template <class, class, class, class...>
  friend struct tensor;
  static constexpr rank_type kRank = Extents::rank();
  static constexpr bool kHasOffset = (msl_impl::same<Tags, tensor_offset> || ...);

  MSL_INLINE constexpr long offset(const index_type* at) const {
    long sum = 0;
    for (rank_type r = 0; r < kRank; ++r) sum += long(at[r]) * long(strides_[r]);
    return sum;
  }
  MSL_INLINE constexpr bool contains(const index_type* at) const {
    for (rank_type r = 0; r < kRank; ++r) {
      if (long(at[r]) < 0 || long(at[r]) >= long(get_extent(r))) return false;
    }
    return true;
  }
  template <class Shape, class... I>
  MSL_INLINE constexpr auto sliced(I... origin) const {
    constexpr bool gains_offset = msl_impl::same<Descriptor, tensor_handle> && !kHasOffset;
    using Offset =
        conditional_t<gains_offset, tensor<ElementType, Shape, Descriptor, Tags..., tensor_offset>,
                      tensor<ElementType, Shape, Descriptor, Tags...>>;
    const index_type at[] = {index_type(origin)...};
    Offset result;
    result.place_ = place_.shifted(offset(at));
    array<index_type, Shape::rank_dynamic() == 0 ? 1 : Shape::rank_dynamic()> left = {};
    rank_type dynamic = 0;
    for (rank_type r = 0; r < kRank; ++r) {
      msl_impl::check_slice(*this, int(r), at[r], long(Shape::static_extent(r)));
      result.strides_[r] = strides_[r];
      if (Shape::static_extent(r) == dynamic_extent) left[dynamic++] = get_extent(r) - at[r];
    }
    if constexpr (Shape::rank_dynamic() != 0) result.extents_ = Shape(left);
    const long begin[] = {long(origin)..., 0};
    result.planes_ = planes_.shifted(begin);
    return result;
  }

  msl_impl::Place<ElementType> place_{};
  extents_type extents_{};
  array<index_type, Extents::rank() == 0 ? 1 : Extents::rank()> strides_{};
  Planes planes_{};
};

template <class T, class I, size_t... E>
tensor(T*, extents<I, E...>) -> tensor<T, extents<I, E...>, tensor_inline>;
template <class T, class I, size_t... E, class S, size_t N>
tensor(T*, extents<I, E...>, array<S, N>) -> tensor<T, extents<I, E...>, tensor_inline>;

template <class T>
inline constexpr bool is_tensor_handle_v = false;
template <class E, class X, class... Tags>
inline constexpr bool is_tensor_handle_v<tensor<E, X, tensor_handle, Tags...>> = true;
template <class T>
inline constexpr bool is_tensor_inline_v = false;
template <class E, class X, class... Tags>
inline constexpr bool is_tensor_inline_v<tensor<E, X, tensor_inline, Tags...>> = true;
template <class T>
inline constexpr bool has_tensor_offset_v = false;
template <class E, class X, class D, class... Tags>
inline constexpr bool has_tensor_offset_v<tensor<E, X, D, Tags...>> =
    (msl_impl::same<Tags, tensor_offset> || ...);

}  // namespace msl::metal
