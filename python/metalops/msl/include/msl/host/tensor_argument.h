// Tensors as arguments of kernels on the host: the buffer contains a description.
#pragma once

#include <msl/host/launch.h>
#include <msl/tensor_argument.h>

namespace msl::msl_support {

// Null for an argument that is not a tensor.
template <class P>
inline constexpr const abi::TensorArgument* tensor_argument =
    msl_impl::tensor_argument_of<P>.element_bits == 0 ? nullptr : &msl_impl::tensor_argument_of<P>;

template <class E, class X, class... Tags>
struct buffer_argument<metal::tensor<E, X, metal::tensor_handle, Tags...>> {
  using Tensor = metal::tensor<E, X, metal::tensor_handle, Tags...>;
  Tensor tensor;
  inline __attribute__((always_inline)) buffer_argument(const Launch* launch, u32 index)
      : tensor(msl_impl::tensor_of<Tensor>(description(launch->buffers[index]))) {}
  // An argument that a function constant switches off has none.
  static inline __attribute__((always_inline)) abi::Tensor description(const void* bound) {
    return bound == nullptr ? abi::Tensor{} : *static_cast<const abi::Tensor*>(bound);
  }
  inline __attribute__((always_inline)) const Tensor& get() const { return tensor; }
};
template <class E, class X, class... Tags>
struct placed_argument<metal::tensor<E, X, metal::tensor_handle, Tags...>>
    : buffer_argument<metal::tensor<E, X, metal::tensor_handle, Tags...>> {
  using buffer_argument<metal::tensor<E, X, metal::tensor_handle, Tags...>>::buffer_argument;
};

}  // namespace msl::msl_support
