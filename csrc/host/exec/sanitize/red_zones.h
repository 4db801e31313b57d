// Marks memory as inaccessible for AddressSanitizer. Does nothing if its runtime is not part of the
// process.
#pragma once
#include <cstddef>

namespace metalops::exec {

bool has_red_zones();

// Poisons whole granules of 8 bytes; granules that the range covers only in part are treated as
// __asan_poison_memory_region treats them.
void poison(const void* begin, size_t bytes);
void unpoison(const void* begin, size_t bytes);

}  // namespace metalops::exec
