// Launch plan of kernels/linalg/cholesky.metal: Cholesky factorisation A = U^H U of matrices of any
// size, recursive as LAPACK's xPOTRF2 until a kernel factors a block of rows.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// Factors a, (batch, n, n) of any strides with elements. factors: likewise, L or, if `upper`, U,
// with zeros in the other triangle. infos: (batch), int32: the first row without a positive pivot.
struct Cholesky {
  View factors;
  View infos;
  View a;
  bool upper = false;
};
void cholesky(Plan& plan, const Cholesky& call, const Device& device);

}  // namespace metalops::plans
