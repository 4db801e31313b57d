// Launches of kernels with textures and samplers, which torch's own kernel objects do not take.
#pragma once
#include <pybind11/pybind11.h>

namespace metalops {

// Adds the class TexturedKernel to the module.
void bind_textured_kernel(pybind11::module_& m);

}  // namespace metalops
