// Eigenvalues and eigenvectors of Hermitian matrices too large for a simdgroup.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/linalg/common/squares.h>

namespace metalops {

// Computes eigenvalues and, if with_vectors, eigenvectors. a: (batch, n, n), float32 or complex64,
// with the strides in `parameters`. values: (batch, n); vectors: (batch, n, n), of contiguous
// columns, one after the other; infos: (batch).
void eigh_of_large(const at::Tensor& a, const SquaresParameters& parameters,
                   const at::Tensor& values, const at::Tensor& vectors, const at::Tensor& infos);

}  // namespace metalops
