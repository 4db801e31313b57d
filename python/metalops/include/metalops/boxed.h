// Boxed kernels: one class serves operators of every signature.
#pragma once
#include <metalops/library.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <utility>

namespace metalops {

// Registers a Functor, constructed from `arguments`, as the kernel of an overload ("ns::name" or
// "ns::name.overload"). Functor is a c10::OperatorKernel that works on the dispatcher's stack.
template <class Functor, class... Arguments>
METALOPS_HIDDEN inline void implement_boxed(torch::Library& m, const std::string& overload,
                                            c10::DispatchKey key, Arguments&&... arguments) {
  m.impl(overload.c_str(),
         torch::dispatch(key, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Functor>(
                                  std::forward<Arguments>(arguments)...))));
}

}  // namespace metalops
