// For kernels that number elements as they lie in memory: tensors of the same sizes are brought to
// the same strides first.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <metalops/library.h>

namespace metalops {

// `tensor`, or a copy of it that lies in memory as `dense` does, a tensor of its sizes without
// gaps.
METALOPS_HIDDEN inline at::Tensor in_layout_of(const at::Tensor& dense, const at::Tensor& tensor) {
  return tensor.strides() == dense.strides()
             ? tensor
             : at::empty_strided(dense.sizes(), dense.strides(), tensor.options()).copy_(tensor);
}

// `result` with the strides of a tensor that is made like `tensor`.
METALOPS_HIDDEN inline at::Tensor laid_out_like(const at::Tensor& tensor,
                                                const at::Tensor& result) {
  const auto out = at::empty_like(tensor);
  return out.strides() == result.strides() ? result : out.copy_(result);
}

}  // namespace metalops
