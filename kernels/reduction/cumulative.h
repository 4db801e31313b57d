// Parameters of the kernels of cumulative.metal, and the sizes of their threadgroups.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Elements that a threadgroup has at a time, and its threads. A thread has eight adjacent elements.
C10_METAL_CONSTEXPR uint32_t kCumulativeTile = 2048;
C10_METAL_CONSTEXPR uint32_t kCumulativeThreads = 256;

struct CumulativeParameters {
  int64_t rows;
  int64_t columns;     // of a row
  int64_t strides[2];  // from column to column of out and self, in bytes
  int64_t span;        // columns of a threadgroup, a multiple of kCumulativeTile
  int32_t spans;       // of a row
  int32_t unused;
};

}  // namespace metalops
