// Parameters of the kernels of linear_act.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

enum class LinearActivation : int32_t { kNone, kRelu, kGelu, kGeluTanh, kSilu };

// The product of a matrix of rows x inner and one of columns x inner elements, transposed.
struct LinearParameters {
  int64_t left_stride;  // between lines: see matmul::Dense
  int64_t right_stride;
  int32_t rows;
  int32_t columns;  // of the result
  int32_t inner;
  LinearActivation activation;
  bool left_transposed;
  bool right_transposed;
  bool has_bias;
  bool keeps;  // whether what the activation is applied to is wanted too
};

// Of the kernel that adds up the columns of a matrix without gaps.
struct LinearColumns {
  int64_t rows;
  int64_t columns;
};

}  // namespace metalops
