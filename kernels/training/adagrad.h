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

// Tensors per launch: each takes four of the 31 buffers that a kernel may have.
C10_METAL_CONSTEXPR unsigned kAdagradTensors = 6;

C10_METAL_CONSTEXPR unsigned kAdagradPack = 4;  // adjacent elements per thread

struct AdagradTensor {
  uint32_t first_pack;  // index of its first vector among all of the launch
  uint32_t elements;
  uint32_t aligned;  // true if its vectors are aligned in all of its tensors
};

struct AdagradTensors {
  AdagradTensor of[kAdagradTensors];
};

}  // namespace metalops
