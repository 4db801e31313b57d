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

C10_METAL_CONSTEXPR unsigned kAdagradPack = 4;  // neighbours that a thread takes

struct AdagradTensor {
  uint32_t first_pack;  // of all packs of the launch
  uint32_t elements;
  uint32_t aligned;  // whether packs begin at a multiple of their size, in all that belongs to it
};

struct AdagradTensors {
  AdagradTensor of[kAdagradTensors];
};

}  // namespace metalops
