// Divide and conquer for singular values and vectors of bidiagonal matrices.
#pragma once
#include <ATen/core/Tensor.h>

namespace metalops {

// Of upper bidiagonal matrices, in no particular order, and among others that are those of rows and
// columns of zeros with which matrices are padded: these have a negative value, and vectors that
// are zero in the first n elements. values: (batch, padded); vectors: (2, batch, padded, padded),
// left and right ones, one after the other.
struct MergedSvd {
  at::Tensor values;
  at::Tensor vectors;
};

// bidiagonals: (2, batch, n), the diagonals and what is beside them, with a zero at the end.
MergedSvd svd_of_bidiagonal(const at::Tensor& bidiagonals, bool with_vectors);

}  // namespace metalops
