// Parameters of the kernels of cholesky.metal. Matrices are row-major; strides between rows and
// between matrices are counted in packs of columns.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The most rows that a threadgroup factors.
C10_METAL_CONSTEXPR uint32_t kCholeskyBlockRows = 32;

struct CholeskyParameters {
  int64_t row_stride;
  int64_t matrix_stride;
  uint32_t first;  // row and column of the matrix where the block begins
  uint32_t rows;   // rows of the block, or of the matrix
};

}  // namespace metalops
