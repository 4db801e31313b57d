// Parameters of the kernels of mm_dtype.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Products of matrices of rows x inner and columns x inner elements, transposed, one after the
// other. Strides in elements; between lines see matmul::Dense.
struct WideProductParameters {
  int64_t left_stride;
  int64_t right_stride;
  int64_t left_step;  // from one product to the next
  int64_t right_step;
  int64_t added_strides[3];  // of what is added: between products, rows and columns
  int32_t rows;
  int32_t columns;
  int32_t inner;
  float alpha;
  float beta;
  bool left_transposed;
  bool right_transposed;
  bool adds;
};

}  // namespace metalops
