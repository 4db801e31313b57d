// Parameters of the kernels of fractional_max_pool.metal.
#pragma once
#include <kernels/spatial/pooling.h>

namespace metalops {

struct FractionalMaxPoolParameters {
  PoolingSizes sizes;
  uint32_t window[3];      // the windows' sizes
  float step[3];           // from one window to the next, on average
  uint32_t samples;        // random samples of a plane
  uint32_t sample_for[3];  // which of these places the windows of a dimension
  int64_t dimensions;      // 2 or 3
};

}  // namespace metalops
