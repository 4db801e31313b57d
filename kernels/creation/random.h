// Parameters of the kernels of random.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct RandomParameters {
  int64_t seed;
  int64_t offset;  // position of element 0 in the Philox stream
};

}  // namespace metalops
