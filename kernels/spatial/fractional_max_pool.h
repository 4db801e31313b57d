// Parameters of the kernels of fractional_max_pool.metal.
#pragma once
#include <kernels/spatial/pooling.h>

namespace metalops {

struct FractionalMaxPoolParameters {
  PoolingSizes sizes;
  uint32_t window[3];      // sizes of the windows
  float step[3];           // average stride of the windows
  uint32_t samples;        // random samples per plane
  uint32_t sample_for[3];  // index of the sample for each dimension
  int64_t dimensions;      // 2 or 3
};

}  // namespace metalops
