// Launch plan of kernels/linalg/svd_large.metal: reduction to bidiagonal form, blocked as LAPACK's
// xGEBRD, divide and conquer, and multiplication of the vectors with the reflectors.
#pragma once
#include <csrc/plans/linalg/svd.h>
#include <csrc/plans/plan.h>
#include <kernels/linalg/common/squares.h>

namespace metalops::plans {

// svd() of square matrices of any size. a: the call's, not conjugated, of which these are the
// parameters.
void svd_of_large(Plan& plan, const Svd& call, const View& a, const SquaresParameters& parameters);

}  // namespace metalops::plans
