// Parameters of the kernels of scaled_grouped_mm.metal.
#pragma once
#include <kernels/matmul/grouped.h>
#include <kernels/matmul/scaled_mm.h>

namespace metalops {

// Parameters of the kernel that dequantises the left operand; each of its matrices has `lines`
// lines.
struct ScaledGroupedDecode {
  int64_t matrix_stride;  // in bytes
  int64_t line_stride;
  int64_t inner_stride;
  int32_t lines;
  int32_t inner;
  int32_t groups;
  Grouped grouped;
  NarrowFormat format;
  ScalePlaces scales;
};

// Grouped products as in GroupedProductParameters, of a dequantised left operand and a quantised
// right one.
struct ScaledGroupedParameters {
  int64_t left_step;   // between matrices
  int64_t right_step;  // in bytes
  int64_t right_stride;
  int64_t result_step;
  int64_t result_stride;
  int64_t left_stride;
  int64_t scale_step;  // between the scales of successive matrices
  int32_t groups;
  int32_t rows;
  int32_t columns;
  int32_t inner;
  Grouped grouped;
  NarrowFormat format;
  ScalePlaces scales;
  // Strides of the scales of whole rows and columns: between lines and between groups.
  int32_t row_step;
  int32_t column_step;
  int32_t row_group_step;
  int32_t column_group_step;
  ScaledResult result;
};

}  // namespace metalops
