// Memory that nothing may touch, marked so for AddressSanitizer. Does nothing where its runtime is
// not part of the process.
#pragma once
#include <cstddef>

namespace metalops::exec {

bool has_red_zones();

// Marks whole granules of 8 bytes; of a granule that the range only begins or ends in, what
// __asan_poison_memory_region does of it.
void poison(const void* begin, size_t bytes);
void unpoison(const void* begin, size_t bytes);

}  // namespace metalops::exec
