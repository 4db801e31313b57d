// Launch plan of kernels/linalg/eigh_large.metal: reduction to tridiagonal form, blocked as
// LAPACK's xHETRD, divide and conquer, and multiplication of the vectors with the reflectors
// (xUNMTR).
#pragma once
#include <csrc/plans/linalg/eigh.h>
#include <csrc/plans/plan.h>
#include <kernels/linalg/common/squares.h>

namespace metalops::plans {

// eigh() of matrices of any size. a: the call's, not conjugated, of which these are the parameters.
void eigh_of_large(Plan& plan, const Eigh& call, const View& a,
                   const SquaresParameters& parameters);

}  // namespace metalops::plans
