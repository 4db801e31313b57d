// 8-bit floating-point dtypes, of which torch's MPS operators know the bytes only.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

namespace metalops {

// Returns true for the four float8 types and float8_e8m0fnu.
METALOPS_HIDDEN inline bool is_narrow_float(at::ScalarType type) { return at::isFloat8Type(type); }

// Returns the kernels' name of such a dtype: its struct of kernels/common/number_formats.h.
METALOPS_HIDDEN inline const char* narrow_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat8_e4m3fn:
      return "e4m3";
    case at::kFloat8_e5m2:
      return "e5m2";
    case at::kFloat8_e4m3fnuz:
      return "e4m3fnuz";
    case at::kFloat8_e5m2fnuz:
      return "e5m2fnuz";
    default:
      TORCH_INTERNAL_ASSERT(type == at::kFloat8_e8m0fnu);
      return "e8m0";
  }
}

}  // namespace metalops
