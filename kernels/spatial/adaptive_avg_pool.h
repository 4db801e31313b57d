// Parameters of the kernels of adaptive_avg_pool.metal.
#pragma once
#include <kernels/spatial/pooling.h>

namespace metalops {

struct AdaptiveAvgPoolParameters {
  PoolingSizes sizes;
  uint32_t channels;  // that lie side by side for each element of a plane, if channels come last
};

}  // namespace metalops
