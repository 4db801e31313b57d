// The kernel that torch itself registered on the MPS key, for operators that we override in the
// cases that it refuses and leave to it in all others.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <metalops/library.h>

#include <utility>

namespace metalops {

// To be made before ours is registered.
class METALOPS_HIDDEN StockKernel {
 public:
  StockKernel(const char* name, const char* overload)
      : operator_(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)),
        kernel_(operator_.getComputedKernelForDispatchKey(c10::DispatchKey::MPS)) {}

  // Of an operator with one result.
  template <class... Arguments>
  at::Tensor operator()(Arguments&&... arguments) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Arguments>(arguments)...);
    kernel_.callBoxed(operator_, c10::DispatchKeySet(c10::DispatchKey::MPS), &stack);
    return torch::jit::pop(stack).toTensor();
  }

 private:
  c10::OperatorHandle operator_;
  c10::SafeKernelFunction kernel_;
};

}  // namespace metalops
