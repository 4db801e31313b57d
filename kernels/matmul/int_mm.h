// Parameters of the kernels of int_mm.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The product of a rows x inner and a columns x inner matrix, the second one transposed.
struct IntProductParameters {
  int64_t left_stride;  // of lines: see matmul::Dense
  int64_t right_stride;
  int32_t rows;
  int32_t columns;
  int32_t inner;
  bool left_transposed;
  bool right_transposed;
  bool has_offsets;  // a bias per column
};

}  // namespace metalops
