// Parameters of the kernels of linear_act.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

enum class LinearActivation : int32_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

// The product of a rows x inner and a columns x inner matrix, the second one transposed.
struct LinearParameters {
  int64_t left_stride;  // of lines: see matmul::Dense
  int64_t right_stride;
  int32_t rows;
  int32_t columns;  // of the result
  int32_t inner;
  LinearActivation activation;
  bool left_transposed;
  bool right_transposed;
  bool has_bias;
  bool keeps;  // the pre-activation is stored too
};

// The sizes of the contiguous matrix whose columns linear_act_column_sums adds up.
struct LinearColumns {
  int64_t rows;
  int64_t columns;
};

}  // namespace metalops
