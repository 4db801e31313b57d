// Tensors as arguments of kernels: the elements and shape that a kernel's parameter declares, and
// the tensor made from the host's binding.
#pragma once

#include <msl/signature.h>
#include <msl/tensor.h>
#include <msl/tensor_abi.h>

namespace msl::msl_impl {

template <class T>
inline constexpr const char* element_name = "";
#define MSL_ELEMENT_NAME(T) \
  template <>               \
  inline constexpr const char* element_name<metal::T> = #T;
MSL_ELEMENT_NAME(int4b_format)
MSL_ELEMENT_NAME(uint4b_format)
MSL_ELEMENT_NAME(int2b_format)
MSL_ELEMENT_NAME(uint2b_format)
MSL_ELEMENT_NAME(metal_fp4_e2m1_format)
MSL_ELEMENT_NAME(metal_fp8_e4m3_format)
MSL_ELEMENT_NAME(metal_fp8_e5m2_format)
MSL_ELEMENT_NAME(metal_fp8_ue8m0_format)
#undef MSL_ELEMENT_NAME
#define MSL_ELEMENT_NAME(T, NAME) \
  template <>                     \
  inline constexpr const char* element_name<T> = NAME;
MSL_ELEMENT_NAME(bool, "bool")
MSL_ELEMENT_NAME(char, "char")
MSL_ELEMENT_NAME(signed char, "char")
MSL_ELEMENT_NAME(uchar, "uchar")
MSL_ELEMENT_NAME(short, "short")
MSL_ELEMENT_NAME(ushort, "ushort")
MSL_ELEMENT_NAME(int, "int")
MSL_ELEMENT_NAME(uint, "uint")
MSL_ELEMENT_NAME(long, "long")
MSL_ELEMENT_NAME(ulong, "ulong")
MSL_ELEMENT_NAME(half, "half")
MSL_ELEMENT_NAME(bfloat, "bfloat")
MSL_ELEMENT_NAME(float, "float")
#undef MSL_ELEMENT_NAME

template <class T>
constexpr uint bits_of_element() {
  if constexpr (is_format<T>) {
    return Format<metal::remove_cv_t<T>>::bits;
  } else {
    return sizeof(T) * 8;
  }
}

template <class T>
constexpr abi::TensorArgument tensor_argument() {
  using Extents = typename T::extents_type;
  using Element = typename T::element_type;
  abi::TensorArgument argument = {};
  const char* const name = element_name<metal::remove_cv_t<Element>>;
  for (int i = 0; name[i] != 0; ++i) argument.element[i] = name[i];
  argument.element_bits = bits_of_element<Element>();
  argument.rank = uint(Extents::rank());
  argument.index_bits = uint(sizeof(typename Extents::index_type) * 8);
  argument.has_scales = T::Planes::has_scales;
  for (size_t r = 0; r < Extents::rank(); ++r) {
    const size_t size = Extents::static_extent(r);
    argument.extents[r] = size == metal::dynamic_extent ? -1 : long(size);
  }
  return argument;
}

// The description of a kernel's parameter: without elements if it is not a tensor.
template <class P>
inline constexpr abi::TensorArgument tensor_argument_of = {};
template <class E, class X, class... Tags>
inline constexpr abi::TensorArgument
    tensor_argument_of<metal::tensor<E, X, metal::tensor_handle, Tags...>> =
        tensor_argument<metal::tensor<E, X, metal::tensor_handle, Tags...>>();
template <class P>
inline constexpr abi::TensorArgument tensor_argument_of<const P> = tensor_argument_of<P>;

template <class T>
MSL_INLINE T tensor_of(const abi::Tensor& bound) {
  using Extents = typename T::extents_type;
  using Index = typename Extents::index_type;
  constexpr size_t dynamic = Extents::rank_dynamic();
  metal::array<Index, dynamic == 0 ? 1 : dynamic> sizes = {};
  metal::array<Index, Extents::rank() == 0 ? 1 : Extents::rank()> strides = {};
  size_t at = 0;
  for (size_t r = 0; r < Extents::rank(); ++r) {
    if (Extents::static_extent(r) == metal::dynamic_extent) sizes[at++] = Index(bound.extents[r]);
    strides[r] = Index(bound.strides[r]);
  }
  const auto elements = static_cast<typename T::data_handle_type>(bound.elements);
  if constexpr (Extents::rank() == 0) {
    return T(elements, Extents());
  } else if constexpr (dynamic == 0) {
    return T(elements, Extents(), strides);
  } else {
    return T(elements, Extents(sizes), strides);
  }
}

}  // namespace msl::msl_impl

namespace msl::msl_support {

template <class E, class X, class... Tags>
inline constexpr u32 is_writable<metal::tensor<E, X, metal::tensor_handle, Tags...>> =
    !msl_impl::is_const<E>;

}  // namespace msl::msl_support
