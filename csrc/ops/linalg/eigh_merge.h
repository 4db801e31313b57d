// Divide and conquer for eigenvalues and eigenvectors of symmetric tridiagonal matrices (as
// LAPACK's xSTEDC).
#pragma once
#include <ATen/core/Tensor.h>

namespace metalops {

// Eigenvalues and eigenvectors in no particular order, those of padding among them: these have an
// infinite value, and vectors that are zero in the first n elements. values: (batch, padded);
// vectors: (batch, padded, padded), one after the other.
struct MergedEigh {
  at::Tensor values;
  at::Tensor vectors;
};

// Computes the eigenvalues and, if with_vectors, the eigenvectors of tridiagonal matrices.
// diagonals: (batch, n); off_diagonals: the off-diagonals, (batch, n) with a zero at the end.
MergedEigh eigh_of_tridiagonal(const at::Tensor& diagonals, const at::Tensor& off_diagonals,
                               bool with_vectors);

}  // namespace metalops
