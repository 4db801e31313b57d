// Views of device tensors, made without a call through the dispatcher. For kernels below autograd
// only: a view made here shares the storage and nothing else (no version counter, no autograd
// history).
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/DimVector.h>
#include <metalops/library.h>

namespace metalops {

// sizes, strides and offset (of the storage) are counted in elements.
METALOPS_HIDDEN inline at::Tensor view_storage(const at::TensorBase& tensor, c10::IntArrayRef sizes,
                                               c10::IntArrayRef strides, int64_t offset) {
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  auto* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return view;
}

// The first (index 0) or second (index 1) half of the last dimension, which has even size.
METALOPS_HIDDEN inline at::Tensor half_of_last_dimension(const at::Tensor& tensor, int64_t index) {
  c10::DimVector sizes(tensor.sizes());
  sizes.back() /= 2;
  return view_storage(tensor, sizes, tensor.strides(),
                      tensor.storage_offset() + index * sizes.back() * tensor.strides().back());
}

}  // namespace metalops
