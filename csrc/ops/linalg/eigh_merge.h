// Divide and conquer for eigenvalues and eigenvectors of symmetric tridiagonal matrices.
#pragma once
#include <ATen/core/Tensor.h>

namespace metalops {

// In no particular order, and among others: those of the rows with which matrices are padded have
// an infinite value, and vectors that are zero in the first n elements. values: (batch, padded);
// vectors: (batch, padded, padded), one after the other.
struct MergedEigh {
  at::Tensor values;
  at::Tensor vectors;
};

// diagonals: (batch, n); besides: the same with a zero at the end.
MergedEigh eigh_of_tridiagonal(const at::Tensor& diagonals, const at::Tensor& besides,
                               bool with_vectors);

}  // namespace metalops
