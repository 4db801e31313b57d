// torch's own kernels on the MPS key, and on keys above it: registering ours next to them, and
// calling theirs from operators that we replace, for all cases that torch handles itself.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>
#include <metalops/library.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace metalops {

// An ATen overload ("aten::take.out") for which both torch and this extension have an MPS kernel.
// reason: why ours replaces torch's; empty if torch's is kept.
struct SharedOverload {
  std::string name;
  std::string reason;
};

// Returns the shared overloads of this extension, in the order of registration.
METALOPS_HIDDEN inline std::vector<SharedOverload>& shared_overloads() {
  static std::vector<SharedOverload> overloads;
  return overloads;
}

// Returns the overloads that this extension has kernels for and that the installed torch does not
// know: those of other versions.
METALOPS_HIDDEN inline std::vector<std::string>& unknown_overloads() {
  static std::vector<std::string> overloads;
  return overloads;
}

// Registers kernels of ATen operators that torch lacks. If a later torch has one of them itself,
// torch's kernel is kept; if an earlier or later one has no such operator, nothing is registered.
//
//   TORCH_LIBRARY_IMPL(aten, MPS, library) {
//     metalops::AtenKernels m(library);
//     m.impl("take.out", take_out);
//   }
class METALOPS_HIDDEN AtenKernels {
 public:
  // key: that of the library, if it is not MPS. shared_overloads() lists replacements on MPS only,
  // so that an overload appears once.
  explicit AtenKernels(torch::Library& library, c10::DispatchKey key = c10::DispatchKey::MPS)
      : library_(library), key_(key) {}

  template <class Function>
  void impl(const char* name, Function&& function) {
    add(name, torch::CppFunction(std::forward<Function>(function)));
  }

  // Replaces torch's kernel, if there is one. reason: why torch's is not sufficient.
  template <class Function>
  void replace(const char* name, Function&& function, const char* reason) {
    replace_with(name, torch::CppFunction(std::forward<Function>(function)), reason);
  }

 private:
  // Not templates: only the function's signature needs code of its own.
  void add(const char* name, torch::CppFunction&& function) {
    const auto handle = find(name);
    if (handle && handle->hasKernelForDispatchKey(key_)) {
      note(name, "");
    } else if (handle) {
      library_.impl(name, std::move(function));
    }
  }

  void replace_with(const char* name, torch::CppFunction&& function, const char* reason) {
    const auto handle = find(name);
    if (!handle) return;
    if (handle->hasKernelForDispatchKey(key_)) note(name, reason);
    // The dispatcher would warn about every kernel that replaces another one.
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    library_.impl(name, std::move(function));
  }

  class Silent final : public c10::WarningHandler {
    void process(const c10::Warning&) override {}
  };

  static std::string qualified(std::string_view name) { return "aten::" + std::string(name); }

  void note(std::string_view name, const char* reason) const {
    if (key_ == c10::DispatchKey::MPS) {
      shared_overloads().push_back({qualified(name), reason});
    }
  }

  // Returns torch's operator. It has a kernel on the software device if it has one on a Mac, for
  // which a stand-in is registered.
  std::optional<c10::OperatorHandle> find(std::string_view name) const {
    const auto dot = name.find('.');
    const auto overload = dot == std::string_view::npos ? "" : name.substr(dot + 1);
    const auto handle = c10::Dispatcher::singleton().findSchema(
        {qualified(name.substr(0, dot)), std::string(overload)});
    if (!handle) unknown_overloads().push_back(qualified(name));
    return handle;
  }

  torch::Library& library_;
  c10::DispatchKey key_;
};

// torch's kernel of an operator. The object must be made before ours is registered.
class METALOPS_HIDDEN StockKernel {
 public:
  StockKernel(const char* name, const char* overload, c10::DispatchKey key = c10::DispatchKey::MPS)
      : operator_(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload)),
        kernel_(operator_.getComputedKernelForDispatchKey(key)),
        key_(key) {}

  // Calls the kernel of an operator with one result.
  template <class... Arguments>
  at::Tensor operator()(Arguments&&... arguments) const {
    torch::jit::Stack stack;
    torch::jit::push(stack, std::forward<Arguments>(arguments)...);
    call(stack);
    return torch::jit::pop(stack).toTensor();
  }

  // Calls the kernel with the arguments on the stack, in whose place the results are then.
  void call(torch::jit::Stack& stack) const {
    kernel_.callBoxed(operator_, c10::DispatchKeySet(key_), &stack);
  }

 private:
  c10::OperatorHandle operator_;
  c10::SafeKernelFunction kernel_;
  c10::DispatchKey key_;
};

}  // namespace metalops
