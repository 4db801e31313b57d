// torch's own kernels on the MPS key: calling them from operators that we override in the cases
// that torch refuses and leave to it in all others, and registering beside them.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
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

// As long as one lives, this thread registers kernels where torch has some already without the
// dispatcher's warning.
class METALOPS_HIDDEN Override {
 public:
  Override() : guard_(&silent_) {}

 private:
  class Silent final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

  Silent silent_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace metalops
