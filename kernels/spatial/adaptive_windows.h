// The windows of adaptive pooling, and a kernel that writes the table of them.
#pragma once
#include <kernels/spatial/pooling.h>

// Returns the window of element i of the result: from i * source / result, rounded down, to (i + 1)
// * source / result, rounded up. With the sizes swapped, it is the set of windows that an element
// of the source belongs to.
inline uint2 adaptive_window(metalops::WindowIndex window) {
  const uint64_t first = static_cast<uint64_t>(window.index) * window.source;
  const uint64_t last = first + window.source - 1;
  return uint2(static_cast<uint>(first / window.result),
               static_cast<uint>(last / window.result) + 1);
}

// Writes the table of windows. One thread per entry.
kernel void adaptive_windows(device uint2* table [[buffer(0)]],
                             constant metalops::PoolingSizes& sizes [[buffer(1)]],
                             uint entry [[thread_position_in_grid]]) {
  const metalops::WindowIndex window(entry, sizes);
  if (window.exists) {
    table[entry] = adaptive_window(window);
  }
}
