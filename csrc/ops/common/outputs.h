// Tensors given as out= to operators that make their results elsewhere.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// How many numbers lie from the first to the last one of a tensor, these included.
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

// Copies a result to an output, of which torch's CPU operators make this: of the right size it
// keeps its strides, without elements it gets those of the result, and of another size it is
// resized, with torch's warning, and contiguous.
METALOPS_HIDDEN inline void write_output(const at::Tensor& result, const at::Tensor& out) {
  if (out.numel() == 0 && out.sizes() != result.sizes()) {
    out.resize_({extent(result)});
    out.as_strided_(result.sizes(), result.strides());
  } else {
    at::native::resize_output(out, result.sizes());
  }
  out.copy_(result);
}

}  // namespace metalops
