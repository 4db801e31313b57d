// Elementwise operators defined at run time, for metalops.functor.
#pragma once
#include <pybind11/pybind11.h>

namespace metalops {

// Adds define_functor and the class ShaderLibrary to the module.
void bind_functor(pybind11::module_& m);

}  // namespace metalops
