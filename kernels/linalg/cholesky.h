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

// The most rows of a panel whose columns are in registers, real and complex, and the most columns
// right of the diagonal block that a threadgroup has.
C10_METAL_CONSTEXPR uint32_t kCholeskyPanelRows = 64;
C10_METAL_CONSTEXPR uint32_t kComplexCholeskyPanelRows = 32;
C10_METAL_CONSTEXPR uint32_t kCholeskyPanelColumns = 64;

struct CholeskyParameters {
  int64_t row_stride;
  int64_t matrix_stride;
  uint32_t first;  // row and column of the matrix where the block begins
  uint32_t rows;   // rows of the block, or of the matrix
};

// Parameters of a panel, rows of the matrix from the diagonal on. Strides are counted in elements.
struct CholeskyPanelParameters {
  int64_t row_stride;
  int64_t matrix_stride;
  uint32_t first;          // row and column of the matrix where the panel begins
  uint32_t rows;           // rows of the panel
  uint32_t columns;        // columns of the matrix from there on
  uint32_t groups;         // threadgroups per matrix
  uint32_t block_threads;  // threads that have columns of the diagonal block
  uint32_t padding;
};

}  // namespace metalops
