// Views and layouts of device tensors, made without calls through the dispatcher where possible.
// For kernels below autograd only: a view made here shares the storage and nothing else (no version
// counter, no autograd history).
#pragma once
#include <ATen/TensorIterator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/DimVector.h>
#include <metalops/library.h>
#include <metalops/torch_internals.h>

namespace metalops {

// Returns a view of the tensor's storage. Sizes, strides and offset (in the storage) are in
// elements.
METALOPS_HIDDEN inline at::Tensor view_storage(const at::TensorBase& tensor, c10::IntArrayRef sizes,
                                               c10::IntArrayRef strides, int64_t offset) {
  return internals::view(tensor, sizes, strides, offset);
}

// Returns the first (index 0) or second (index 1) half of the last dimension, which has even size.
METALOPS_HIDDEN inline at::Tensor half_of_last_dimension(const at::Tensor& tensor, int64_t index) {
  c10::DimVector sizes(tensor.sizes());
  sizes.back() /= 2;
  return view_storage(tensor, sizes, tensor.strides(),
                      tensor.storage_offset() + index * sizes.back() * tensor.strides().back());
}

// Returns an operand of an iterator that may be part of a larger one (with_32bit_indexing): the
// returned tensor starts where the iterator does.
METALOPS_HIDDEN inline at::Tensor operand_at_start(const at::TensorIteratorBase& iter, int index) {
  const auto& tensor = iter.tensor(index);
  const auto bytes = static_cast<const char*>(iter.data_ptr(index)) -
                     static_cast<const char*>(tensor.const_data_ptr());
  if (bytes == 0) {
    return tensor;
  }
  return view_storage(
      tensor, {1}, {1},
      tensor.storage_offset() + bytes / static_cast<int64_t>(tensor.element_size()));
}

// Returns `tensor`, or a copy of it with the strides of `dense`, a dense tensor of the same sizes.
METALOPS_HIDDEN inline at::Tensor in_layout_of(const at::Tensor& dense, const at::Tensor& tensor) {
  return tensor.strides() == dense.strides()
             ? tensor
             : at::empty_strided(dense.sizes(), dense.strides(), tensor.options()).copy_(tensor);
}

// Returns `result` with the strides of at::empty_like(tensor).
METALOPS_HIDDEN inline at::Tensor laid_out_like(const at::Tensor& tensor,
                                                const at::Tensor& result) {
  if (tensor.is_contiguous() && tensor.strides() == result.strides()) {
    return result;
  }
  const auto out = at::empty_like(tensor);
  return out.strides() == result.strides() ? result : out.copy_(result);
}

// Calls write(result) with `out` or, if that is not contiguous, with a temporary that is then
// copied to it.
template <class Write>
METALOPS_HIDDEN inline void write_contiguous(
    const at::Tensor& out, const Write& write,
    at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  const bool direct = out.is_contiguous(format);
  const auto result = direct ? out : at::empty(out.sizes(), out.options().memory_format(format));
  write(result);
  if (!direct) {
    out.copy_(result);
  }
}

}  // namespace metalops
