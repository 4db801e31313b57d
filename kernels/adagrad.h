// Parameters of the kernels of adagrad.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct AdagradParameters {
  float lr_decay;
  float weight_decay;
  float eps;
  uint32_t maximize;
  uint32_t has_grad_scale;
};

// Of one launch: four buffers each, of the 31 that a kernel may have.
C10_METAL_CONSTEXPR unsigned kAdagradTensors = 6;

// Where the elements of each tensor end.
struct AdagradEnds {
  uint32_t of[kAdagradTensors];
};

}  // namespace metalops
