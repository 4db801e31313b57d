// Eigenvalues and eigenvectors of general matrices that are too large for a simdgroup
// (csrc/ops/linalg/eig_large.mm).
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/linalg/common/squares.h>
#include <metalops/library.h>

namespace metalops {

// Computes eigenvalues and eigenvectors. The arguments are those of the kernels of
// kernels/linalg/eig.metal.
METALOPS_HIDDEN void eig_of_large(const at::Tensor& a, const SquaresParameters& parameters,
                                  const at::Tensor& values, const at::Tensor& vectors,
                                  const at::Tensor& infos);

}  // namespace metalops
