// Parameters of the kernels of pdist.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct PdistParameters {
  int64_t points;       // rows of the input
  int64_t columns;      // coordinates of a point
  int64_t grad_stride;  // from one distance's gradient to the next one's, in elements
  float p;
};

// That a threadgroup takes of a point.
C10_METAL_CONSTEXPR uint32_t kMostCoordinates = 256;

}  // namespace metalops
