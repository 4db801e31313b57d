// The shared host code of max pooling: the host side of kernels/spatial/max_pooling.h.
#pragma once
#include <ATen/MemoryOverlap.h>
#include <csrc/ops/common/typed_kernel.h>
#include <csrc/ops/spatial/pooling.h>
#include <metalops/checks.h>
#include <metalops/views.h>

namespace metalops {

METALOPS_HIDDEN inline void check_pooled_dtype(const char* name, at::ScalarType type) {
  check_metal_float(name, type);
}

// Checks overlaps, and calls write(result, result_indices) with contiguous tensors.
template <class Write>
METALOPS_HIDDEN inline void write_maxima(const at::Tensor& input, const at::Tensor& output,
                                         const at::Tensor& indices, const Write& write) {
  for (const auto& written : {output, indices}) {
    at::assert_no_internal_overlap(written);
    at::assert_no_overlap(written, input);
  }
  at::assert_no_overlap(output, indices);
  write_contiguous(output, [&](const at::Tensor& result) {
    write_contiguous(indices,
                     [&](const at::Tensor& result_indices) { write(result, result_indices); });
  });
}

// Computes the gradient. sizes: from those of the output to those of the input. table: for each
// element of the input, the range of output elements whose windows may contain it. checking:
// the kernel that checks the indices. arguments: its last arguments.
template <class... Arguments>
METALOPS_HIDDEN inline void max_pool_backward(at::native::mps::MetalShaderLibrary& library,
                                              const char* checking, const PoolingSizes& sizes,
                                              const at::Tensor& grad_output,
                                              const at::Tensor& indices,
                                              const at::Tensor& grad_input, const at::Tensor& table,
                                              const Arguments&... arguments) {
  at::assert_no_internal_overlap(grad_input);
  for (const auto& read : {grad_output, indices}) {
    at::assert_no_overlap(grad_input, read);
  }
  const auto where = indices.contiguous();
  launch_planes(library, checking, where, where, table, sizes, arguments..., kErrorBuffer);
  write_contiguous(grad_input, [&](const at::Tensor& result) {
    launch_planes(library, typed_kernel("max_pool_backward_", grad_input), result, result,
                  grad_output.contiguous(), where, table, sizes);
  });
}

}  // namespace metalops
