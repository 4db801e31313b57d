// Checks the arguments of operators on mps by the functions of csrc/plans (see
// csrc/plans/arguments.h):
//
//   metalops::Operands of("gguf_linear");
//   metalops::check_arguments(plans::check_gguf_linear, {.x = of(x, "x"), .data = ...});
#pragma once
#include <ATen/core/Tensor.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/plans/arguments.h>
#include <metalops/library.h>

#include <optional>
#include <string_view>
#include <type_traits>

namespace metalops {

// The tensors of an operator, as checks see them; the tensors must live as long as these. Raises
// RuntimeError for a tensor on another device than the ones before it. argument: the tensor's name.
class METALOPS_HIDDEN Operands {
 public:
  explicit Operands(const char* name) : name_(name) {}

  plans::Operand operator()(const at::Tensor& tensor, const char* argument);
  plans::Operand operator()(const MaybeTensor& tensor, const char* argument) {
    return tensor ? (*this)(*tensor, argument) : plans::Operand{};
  }

 private:
  const char* name_;
  std::optional<at::Device> device_;
};

inline plans::Text text_of(std::string_view text) {
  return {text.data(), static_cast<int64_t>(text.size())};
}

[[noreturn]] METALOPS_HIDDEN void raise(const plans::ArgumentError& error);

// Raises what the check finds.
template <class Arguments>
void check_arguments(void (*check)(const Arguments&),
                     const std::type_identity_t<Arguments>& arguments) {
  try {
    check(arguments);
  } catch (const plans::ArgumentError& error) {
    raise(error);
  }
}

}  // namespace metalops
