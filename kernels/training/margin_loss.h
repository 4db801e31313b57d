// Parameters of the kernels of margin_loss.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct MarginLossParameters {
  int64_t rows;     // samples
  int64_t classes;  // elements of a row
  // From the gradient of one row's loss to that of the next one, in elements; 0 if they share one.
  int64_t grad_stride;
  float scale;  // by which every sum over classes is multiplied
  // Of multi_margin_loss only:
  float margin;
  int32_t power;     // 1 or 2
  int32_t weighted;  // whether there are weights
};

}  // namespace metalops
