// Parameters of the kernels of random.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct RandomParameters {
  int64_t seed;
  int64_t offset;  // the place in the Philox stream that belongs to element 0
};

}  // namespace metalops
