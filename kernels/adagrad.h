// Parameters of the kernels of adagrad.metal.
#pragma once
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

}  // namespace metalops
