// Parameters of the kernels of mode.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct ModeParameters {
  int64_t rows;
  int64_t columns;
};

}  // namespace metalops
