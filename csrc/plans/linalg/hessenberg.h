// Launch plan of kernels/linalg/hessenberg.metal: balancing (the scaling of LAPACK's xGEBAL) and
// the blocked reduction to Hessenberg form (xGEHRD).
#pragma once
#include <csrc/plans/plan.h>
#include <kernels/linalg/common/squares.h>

namespace metalops::plans {

// H = Q^H (D^-1 A D) Q 2^-exponent, whose elements are at most about 1. Matrices are stored as in
// blocked_reduction.h.
struct Hessenberg {
  View h;          // (batch, n, row), by columns
  View q;          // likewise; absent if it is not wanted
  View scales;     // (batch, n) exponents of D
  View exponents;  // (batch): of the power of two
};

// Reduces a: (batch, n, n). Sets infos to 0, or to kEigNotFinite where `a` is not finite and H is
// that of a zero matrix.
Hessenberg hessenberg(Plan& plan, const View& a, const SquaresParameters& parameters, bool with_q,
                      const View& infos);

}  // namespace metalops::plans
