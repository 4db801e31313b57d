// Parameters of the kernels of grouped_mm.metal.
#pragma once
#include <kernels/matmul/grouped.h>

namespace metalops {

// A batch of products of rows x inner and columns x inner matrices, the second one transposed. The
// size of the grouped dimension is that of all groups together. Strides are in elements; for
// strides of lines see matmul::Dense.
struct GroupedProductParameters {
  int64_t left_stride;
  int64_t right_stride;
  int64_t result_stride;
  int64_t left_step;  // between matrices
  int64_t right_step;
  int64_t result_step;
  int32_t groups;
  int32_t rows;
  int32_t columns;
  int32_t inner;
  Grouped grouped;
  bool left_transposed;
  bool right_transposed;
};

}  // namespace metalops
