// Functions of the C library itself. A sanitizer intercepts them with its own, which would take the
// CPU thread for the one that accesses the memory.
#pragma once
#include <cstddef>

namespace metalops::exec::c_library {

void* move(void* to, const void* from, size_t bytes);
void* fill(void* to, int byte, size_t bytes);

}  // namespace metalops::exec::c_library
