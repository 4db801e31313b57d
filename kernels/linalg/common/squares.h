// Parameters of kernels that take square matrices.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// A batch of square matrices of any strides. A launch processes the matrices from `first` up to,
// but not including, `end`.
struct SquaresParameters {
  int64_t matrix_stride;  // in elements
  int64_t row_stride;
  int64_t column_stride;
  uint32_t first;
  uint32_t end;
  int32_t size;
  uint32_t is_upper;  // the triangle that is read, where only one is
  uint32_t with_vectors;
  uint32_t padding;
};

}  // namespace metalops
