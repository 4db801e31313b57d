// Parameters of rrelu's training kernel.
#pragma once
#include <c10/metal/common.h>

namespace metalops {

struct RreluParameters {
  int64_t seed;
  int64_t offset;  // in the Philox stream, in units of four numbers
  float lower;
  float upper;
};

}  // namespace metalops
