// Parameters of the kernels of gemm.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// A batch of products of rows x inner and columns x inner matrices, the second one transposed:
// beta added + alpha left right^T. Strides are in elements; for strides of lines see matmul::Dense.
struct GemmParameters {
  int64_t left_stride;
  int64_t right_stride;
  int64_t left_step;  // between products
  int64_t right_step;
  int64_t added_strides[3];  // of the added matrix: between products, rows and columns
  int64_t integer_alpha;     // of integers; alpha and beta are real and imaginary parts
  int64_t integer_beta;
  float alpha[2];
  float beta[2];
  int32_t rows;
  int32_t columns;
  int32_t inner;
  bool left_transposed;
  bool right_transposed;
  bool adds;
};

}  // namespace metalops
