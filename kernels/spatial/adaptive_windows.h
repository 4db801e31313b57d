// The table of windows of adaptive pooling, for the families that have one: a kernel that writes
// it.
#pragma once
#include <kernels/spatial/pooling.h>

// Element i of the result has the window from i * source / result, rounded down, to (i + 1) *
// source / result, rounded up; so has, with the sizes swapped, an element of the source that
// belongs to several windows.
inline uint2 adaptive_window(metalops::WindowPlace place) {
  const uint64_t first = static_cast<uint64_t>(place.index) * place.source;
  const uint64_t last = first + place.source - 1;
  return uint2(static_cast<uint>(first / place.result), static_cast<uint>(last / place.result) + 1);
}

// A thread for each entry.
kernel void adaptive_windows(device uint2* table [[buffer(0)]],
                             constant metalops::PoolingSizes& sizes [[buffer(1)]],
                             uint entry [[thread_position_in_grid]]) {
  const metalops::WindowPlace place(entry, sizes);
  if (place.exists) {
    table[entry] = adaptive_window(place);
  }
}
