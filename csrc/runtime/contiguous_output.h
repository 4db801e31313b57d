// For kernels that write contiguous tensors only, whatever out= they are given.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <metalops/library.h>

namespace metalops {

// Calls write(result) with `out` or, if that is not contiguous, with a tensor that is copied to it.
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
