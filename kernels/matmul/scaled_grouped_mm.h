// Parameters of the kernels of scaled_grouped_mm.metal.
#pragma once
#include <kernels/matmul/grouped.h>
#include <kernels/matmul/scaled_mm.h>

namespace metalops {

// Of the kernel that decodes the left operand: `lines` lines in each of its matrices.
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

// Products as those of GroupedProductParameters, of a decoded left operand and a coded right one.
struct ScaledGroupedParameters {
  int64_t left_step;   // from one matrix to the next
  int64_t right_step;  // in bytes
  int64_t right_stride;
  int64_t result_step;
  int64_t result_stride;
  int64_t left_stride;
  int64_t scale_step;  // from the scales of one matrix to those of the next
  int32_t groups;
  int32_t rows;
  int32_t columns;
  int32_t inner;
  Grouped grouped;
  NarrowFormat format;
  ScalePlaces scales;
  // Of the scales of whole rows and columns, between lines and between groups.
  int32_t row_step;
  int32_t column_step;
  int32_t row_group_step;
  int32_t column_group_step;
  ScaledResult result;
};

}  // namespace metalops
