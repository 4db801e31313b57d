// Tensors as arguments of kernels on NVIDIA's GPUs: a description comes with the launch.
#pragma once

#include <msl/cuda/launch.h>
#include <msl/tensor_argument.h>

namespace msl::msl_support {

template <class E, class X, class... Tags>
struct buffer_of<metal::tensor<E, X, metal::tensor_handle, Tags...>> {
  using Tensor = metal::tensor<E, X, metal::tensor_handle, Tags...>;
  static MSL_INLINE Tensor get(const Launch& launch, u32 index) {
    return msl_impl::tensor_of<Tensor>(*address<const abi::Tensor>(launch, index));
  }
};

}  // namespace msl::msl_support
