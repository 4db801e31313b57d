// Parameters of the kernels of ldl.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

#include <kernels/linalg/common/small_matrices.h>

namespace metalops {

// Parameters of kernels on column-major planar copies of matrices.
struct LdlColumnsParameters {
  MatrixStrides given;  // strides of the input or the output
  uint64_t ld;          // padded number of columns, and of floats in each part of one
  uint32_t size;        // rows of a matrix
  uint32_t last;        // columns before this one are factored
  uint32_t is_hermitian;
  uint32_t is_by_rows;  // elements of a row are adjacent in the input
};

// Parameters of solving: matrices are row-major; strides are counted in elements or in packs.
struct LdlParameters {
  int64_t row_stride;
  int64_t matrix_stride;
  uint32_t size;
  uint32_t is_hermitian;
  uint32_t is_backward;
};

}  // namespace metalops
