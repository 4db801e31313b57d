// Elementwise operators defined at run time, for metalops.functor.
#pragma once
#include <ATen/native/mps/MetalShaderLibrary.h>
#include <pybind11/pybind11.h>

#include <string>

namespace metalops {

// A compiled library, as Python holds it.
struct ShaderLibrary {
  explicit ShaderLibrary(const std::string& source) : library(source) {}
  at::native::mps::DynamicMetalShaderLibrary library;
};

// Adds define_functor and the class ShaderLibrary to the module.
void bind_functor(pybind11::module_& m);

}  // namespace metalops
