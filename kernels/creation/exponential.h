// Parameters of the kernels of exponential.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// seed, offset: of the generator's stream.
struct ExponentialParameters {
  int64_t seed;
  int64_t offset;
  int64_t count;
  float scale;  // the mean
};

}  // namespace metalops
