// Singular values and vectors of square matrices too large for a simdgroup.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/linalg/common/squares.h>

namespace metalops {

// Computes the singular values and, if with_vectors, the singular vectors. a: (batch, n, n),
// float32 or complex64, with the strides in `parameters`; n is at least 2. values: (batch, n),
// descending. u, v_adjoint: (batch, n, n) of contiguous columns, one after the other. infos:
// (batch), -4 where a matrix is not finite, whose results are undefined, else 0.
void svd_of_large(const at::Tensor& a, const SquaresParameters& parameters, const at::Tensor& u,
                  const at::Tensor& values, const at::Tensor& v_adjoint, const at::Tensor& infos);

}  // namespace metalops
