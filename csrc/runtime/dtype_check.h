// Refusing dtypes that an operator has no kernels for, as torch's own operators refuse them.
#pragma once
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <metalops/library.h>
#include <metalops/operator_name.h>

#include <string_view>

namespace metalops {

// Raises NotImplementedError unless `has_kernel`. name: of the operator, with or without namespace.
METALOPS_HIDDEN inline void check_dtype(bool has_kernel, std::string_view name,
                                        at::ScalarType type) {
  TORCH_CHECK_NOT_IMPLEMENTED(has_kernel, "\"", unqualified(name), "\" not implemented for '", type, "'");
}

METALOPS_HIDDEN inline void check_not_complex(std::string_view name, at::ScalarType type) {
  check_dtype(!at::isComplexType(type), name, type);
}

}  // namespace metalops
