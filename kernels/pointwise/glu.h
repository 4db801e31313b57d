// Parameters of the kernels of glu.metal.
#pragma once
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The layout of a tensor x that is halved along dimension `dim` into a and b: for each index of the
// dimensions before it, `half_size` elements of a are followed by as many of b.
struct GluParameters {
  int64_t half_size;
};

}  // namespace metalops
