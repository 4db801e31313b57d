// Times of the device for work that torch's stream encodes, from its command buffers.
#pragma once
#include <pybind11/pybind11.h>

namespace metalops {

void bind_command_time(pybind11::module_& m);

}  // namespace metalops
