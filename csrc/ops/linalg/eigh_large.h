// Eigenvalues and eigenvectors of Hermitian matrices too large for a simdgroup.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/linalg/common/squares.h>

namespace metalops {

// a: (batch, n, n), float32 or complex64, of the layout of `parameters`. values: (batch, n);
// vectors: of (batch, n, n) columns without gaps, one after the other, if with_vectors; infos:
// batch numbers.
void eigh_of_large(const at::Tensor& a, const SquaresParameters& parameters,
                   const at::Tensor& values, const at::Tensor& vectors, const at::Tensor& infos);

}  // namespace metalops
