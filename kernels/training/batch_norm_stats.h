// Parameters of the kernels of batch_norm_stats.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// A channel's elements are [outer][inner] in the input. Strides are in elements.
struct BatchNormStatsParameters {
  int64_t channels;
  int64_t outer;
  int64_t inner;
  int64_t channel_stride;
  int64_t outer_stride;
  int64_t inner_stride;
  int64_t running_mean_stride;
  int64_t running_var_stride;
  float momentum;
  int32_t has_running_mean;
  int32_t has_running_var;
};

}  // namespace metalops
