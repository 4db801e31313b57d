// Parameters of rrelu's training kernel.
#pragma once
#include <c10/metal/common.h>

namespace metalops {

struct RreluParameters {
  int64_t seed;
  int64_t offset;  // into the Philox stream, which gives four numbers at a time
  float lower;
  float upper;
};

}  // namespace metalops
