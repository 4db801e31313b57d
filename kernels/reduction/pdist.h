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
  int64_t grad_stride;  // between the gradients of successive distances, in elements
  float p;
};

// Coordinates of a point per threadgroup, at most.
C10_METAL_CONSTEXPR uint32_t kMostCoordinates = 256;

}  // namespace metalops
