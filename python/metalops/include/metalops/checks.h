// Checks of arguments, with the messages of torch's own operators.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <metalops/library.h>
#include <metalops/torch_internals.h>

#include <initializer_list>
#include <optional>
#include <string_view>

namespace metalops {

// Returns an operator's name without the namespace: "add" for "aten::add".
METALOPS_HIDDEN inline std::string_view unqualified(std::string_view name) {
  return name.substr(name.rfind(':') + 1);
}

struct NamedTensor {
  const at::Tensor& tensor;
  const char* name;  // the argument's
};

// Raises RuntimeError unless all tensors are on one device, as torch's generated code does. name:
// the operator's.
METALOPS_HIDDEN inline void check_same_device(const char* name,
                                              std::initializer_list<NamedTensor> tensors) {
  std::optional<at::Device> device;
  for (const auto& [tensor, argument] : tensors) {
    internals::check_and_update_common_device(device, tensor, name, argument);
  }
}

// Raises NotImplementedError unless `has_kernel`. name: the operator's, with or without namespace.
METALOPS_HIDDEN inline void check_dtype(bool has_kernel, std::string_view name,
                                        at::ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(has_kernel, "\"", unqualified(name), "\" not implemented for '", type,
                              "'");
}

// Returns true for Metal's floating-point types: float32, float16 and bfloat16.
METALOPS_HIDDEN inline bool is_metal_float(at::ScalarType type) {
  return type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
}

METALOPS_HIDDEN inline void check_metal_float(std::string_view name, at::ScalarType type) {
  check_dtype(is_metal_float(type), name, type);
}

METALOPS_HIDDEN inline void check_not_complex(std::string_view name, at::ScalarType type) {
  check_dtype(!at::isComplexType(type), name, type);
}

}  // namespace metalops
