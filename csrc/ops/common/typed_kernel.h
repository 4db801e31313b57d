// Names of kernels that are instantiated for several dtypes: a prefix and the Metal names of the
// dtypes, as in "lu_panel_float".
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/kernel_name.h>
#include <metalops/library.h>
#include <metalops/metal_type.h>

namespace metalops {

// prefix: a literal, as for KernelName.
METALOPS_HIDDEN inline KernelName typed_kernel(const char* prefix, at::ScalarType type) {
  return KernelName(prefix) + metal_type(type);
}

METALOPS_HIDDEN inline KernelName typed_kernel(const char* prefix, const at::Tensor& tensor) {
  return typed_kernel(prefix, tensor.scalar_type());
}

// For kernels of two dtypes: "resize_float_uchar".
METALOPS_HIDDEN inline KernelName typed_kernel(const char* prefix, const at::Tensor& first,
                                               const at::Tensor& second) {
  return typed_kernel(prefix, first) + "_" + metal_type(second.scalar_type());
}

}  // namespace metalops
