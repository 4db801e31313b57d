// Divide and conquer for singular values and vectors of bidiagonal matrices (as LAPACK's xBDSDC).
#pragma once
#include <ATen/core/Tensor.h>

namespace metalops {

// Singular values and vectors in no particular order, those of padding (rows and columns of zeros)
// among them: these have a negative value, and vectors that are zero in the first n elements.
// values: (batch, padded); vectors: (2, batch, padded, padded), left and right ones, one after the
// other.
struct MergedSvd {
  at::Tensor values;
  at::Tensor vectors;
};

// Computes the SVD of upper bidiagonal matrices. bidiagonals: (2, batch, n), the diagonals and the
// superdiagonals, the latter with a zero at the end.
MergedSvd svd_of_bidiagonal(const at::Tensor& bidiagonals, bool with_vectors);

}  // namespace metalops
