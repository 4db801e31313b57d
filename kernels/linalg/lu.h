// Parameters of the kernels of lu.metal. Matrices are row-major; unless stated otherwise, strides
// between rows and between matrices are counted in packs of columns.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

#include <kernels/linalg/common/small_matrices.h>

namespace metalops {

// The most columns that a threadgroup factors.
C10_METAL_CONSTEXPR uint32_t kLuPanelColumns = 32;

// The most rows and columns of a matrix that a simdgroup factors, a row for each lane.
C10_METAL_CONSTEXPR uint32_t kLuSimdgroup = 32;
// The most threads of a panel whose rows are in registers, which do not suffice for more.
C10_METAL_CONSTEXPR uint32_t kMostLuThreads = 512;

// Threads that permute rows, and packs of columns that they move.
C10_METAL_CONSTEXPR uint32_t kLuPermutingThreads = 256;
C10_METAL_CONSTEXPR uint32_t kLuPermutedPacks = 8;

// Mode of the kernel for small systems: A^T X = B, of transposed factors.
C10_METAL_CONSTEXPR uint32_t kLuTransposed = 1;

struct LuPanelParameters {
  MatrixStrides input;
  MatrixStrides output;
  int64_t pivots_stride;  // between matrices' pivots
  uint64_t ld;            // floats in a column, or in each part of a complex one, with padding
  uint32_t first;         // row and column of the matrix where the panel begins
  uint32_t rows;          // rows of the panel
  uint32_t columns;
  uint32_t steps;  // columns that are factored
  uint32_t is_pivoted;
  uint32_t padding;
};

// Parameters of matrices and panels whose rows are in registers. Strides are counted in elements.
// They begin where the buffers do.
struct LuRowsParameters {
  MatrixStrides input;
  MatrixStrides output;
  int64_t pivots_stride;  // between matrices' pivots
  uint32_t matrices;
  uint32_t first;  // row and column of the matrix where the panel begins
  uint32_t rows;   // rows of the panel
  uint32_t columns;
  uint32_t steps;  // columns that are factored
  uint32_t is_pivoted;
  uint32_t input_in_packs;  // rows are whole packs, and begin at multiples of one
  uint32_t output_in_packs;
};

struct LuSwapParameters {
  int64_t row_stride;
  int64_t matrix_stride;
  int64_t pivots_stride;
  uint32_t first;  // first of the pivots that are applied
  uint32_t count;
  uint32_t rows;    // rows of the matrix
  uint32_t packs;   // per row
  uint32_t groups;  // threadgroups per matrix
  uint32_t is_backward;
};

// Strides are counted in elements.
struct LuDeterminantParameters {
  int64_t matrix_stride;
  int64_t diagonal_stride;
  uint32_t matrices;
  uint32_t size;
};

}  // namespace metalops
