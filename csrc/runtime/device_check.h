// The check that torch generates for its own kernels: all tensors on one device.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/op_registration/adaption.h>
#include <metalops/library.h>

#include <initializer_list>
#include <optional>

namespace metalops {

struct NamedTensor {
  const at::Tensor& tensor;
  const char* name;  // the argument's
};

// Raises RuntimeError if they are not. name: of the operator.
METALOPS_HIDDEN inline void check_same_device(const char* name,
                                              std::initializer_list<NamedTensor> tensors) {
  std::optional<at::Device> device;
  for (const auto& [tensor, argument] : tensors) {
    c10::impl::check_and_update_common_device(device, tensor, name, argument);
  }
}

}  // namespace metalops
