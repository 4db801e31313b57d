// Parameters of the kernels of margin_loss.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct MarginLossParameters {
  int64_t rows;     // samples
  int64_t classes;  // elements per row
  // Stride between the gradients of the rows' losses, in elements; 0 if they share one.
  int64_t grad_stride;
  float scale;  // multiplies every sum over classes
  // Used by multi_margin_loss only:
  float margin;
  int32_t power;     // 1 or 2
  int32_t weighted;  // true if there are weights
};

}  // namespace metalops
