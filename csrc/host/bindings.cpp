// Python module metalops._host: the software Metal device. Each folder binds its own functions.
#include <torch/csrc/utils/pybind.h>

namespace metalops {
void bind_device(pybind11::module_& m);  // device/bindings.cpp
void bind_metal(pybind11::module_& m);   // metal/bindings.cpp
void bind_exec(pybind11::module_& m);    // exec/bindings.cpp
}  // namespace metalops

PYBIND11_MODULE(_host, m) {
  m.doc() =
      "The software Metal device: an mps device in host memory and the runtime of Metal kernels on "
      "the CPU.";
  metalops::bind_exec(m);
  metalops::bind_metal(m);
  metalops::bind_device(m);
}
