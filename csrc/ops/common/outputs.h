// Writing results to tensors given as out=.
//
// Kernels that need a contiguous tensor write it with write_contiguous() of <metalops/views.h>.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// Returns how many elements of memory a tensor spans, from its first to its last element.
METALOPS_HIDDEN inline int64_t extent(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * tensor.stride(i);
  }
  return last + 1;
}

// Copies a result to `out`. An `out` of another size is resized, with torch's warning, and is then
// contiguous.
METALOPS_HIDDEN inline void resize_and_copy(const at::Tensor& result, const at::Tensor& out) {
  at::native::resize_output(out, result.sizes());
  out.copy_(result);
}

// Copies a result to `out` as torch's CPU operators do that make the result elsewhere: an `out`
// without elements gets the strides of the result, any other is resized as by resize_and_copy().
METALOPS_HIDDEN inline void write_output(const at::Tensor& result, const at::Tensor& out) {
  if (out.numel() == 0 && out.sizes() != result.sizes()) {
    out.resize_({extent(result)});
    out.as_strided_(result.sizes(), result.strides());
    out.copy_(result);
  } else {
    resize_and_copy(result, out);
  }
}

// Calls write(result) with `out` if the kernel can write to it directly, else with a contiguous
// tensor of the same sizes and of this dtype, which is then copied to `out`.
template <class Write>
METALOPS_HIDDEN inline void write_through(const at::Tensor& out, bool is_direct,
                                          at::ScalarType type, const Write& write) {
  const auto result = is_direct ? out : at::empty(out.sizes(), out.options().dtype(type));
  write(result);
  if (!is_direct) {
    out.copy_(result);
  }
}

}  // namespace metalops
