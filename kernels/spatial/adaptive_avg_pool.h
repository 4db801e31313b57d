// Parameters of the kernels of adaptive_avg_pool.metal.
#pragma once
#include <kernels/spatial/pooling.h>

namespace metalops {

struct AdaptiveAvgPoolParameters {
  PoolingSizes sizes;
  uint32_t channels;  // contiguous channels per pixel if channels come last
};

}  // namespace metalops
