#include <c10/util/Exception.h>
#include <csrc/ops/common/arguments.h>
#include <metalops/torch_internals.h>

metalops::plans::Operand metalops::Operands::operator()(const at::Tensor& tensor,
                                                        const char* argument) {
  if (!tensor.defined()) {
    return {};
  }
  internals::check_and_update_common_device(device_, tensor, name_, argument);
  return {tensor.sizes().data(), static_cast<int32_t>(tensor.dim()),
          static_cast<plans::Type>(tensor.scalar_type())};
}

void metalops::raise(const plans::ArgumentError& error) {
  TORCH_CHECK_VALUE(error.kind() != plans::ErrorKind::kValueError, error.what());
  TORCH_CHECK_NOT_IMPLEMENTED(error.kind() != plans::ErrorKind::kNotImplementedError, error.what());
  TORCH_CHECK(false, error.what());
}
