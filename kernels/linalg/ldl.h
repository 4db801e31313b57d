// Parameters of the kernels of ldl.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

#include <kernels/linalg/common/small_matrices.h>

namespace metalops {

// Of matrices in columns.
struct LdlColumnsParameters {
  MatrixSteps given;  // of the input or the output
  uint64_t apart;     // columns, of which there are as many, and their parts
  uint32_t size;      // rows of a matrix
  uint32_t last;      // columns before this one are factored
  uint32_t is_hermitian;
  uint32_t is_by_rows;  // numbers of a row are neighbours in the input
};

// Of solving: matrices lie in rows, steps are counted in numbers or in packs of them.
struct LdlParameters {
  int64_t row_step;
  int64_t matrix_step;
  uint32_t size;
  uint32_t is_hermitian;
  uint32_t is_backward;
};

}  // namespace metalops
