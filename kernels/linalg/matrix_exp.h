// Parameters of the kernels of matrix_exp.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Matrices are contiguous.
struct MatrixExpParameters {
  int64_t elements;          // elements of all matrices
  uint32_t size;             // rows, and columns, of a matrix
  uint32_t terms;            // at most 4
  float coefficients[5][5];  // per sum: those of the identity, then of the terms
};

}  // namespace metalops
