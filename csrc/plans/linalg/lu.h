// Launch plans of kernels/linalg/lu.metal: LU factorisation with partial pivoting, recursive in the
// columns as LAPACK's xGETRF2 until a kernel factors a panel, and solutions with the factors.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// Factors a, (batch, m, n) of any strides with elements. factors: likewise. pivots: (batch,
// min(m, n)), int32, contiguous, as LAPACK's; infos: (batch), int32: the first step without a
// pivot.
struct LuFactor {
  View factors;
  View pivots;
  View infos;
  View a;
  bool is_pivoted = true;
};
void lu_factor(Plan& plan, const LuFactor& call, const Device& device);

// Solves A X = B, or A^T X = B if is_transposed, with the factors of A (xGETRS). x, b: (batch, n,
// columns), of any strides, with elements. factors: (batch, n, n), maybe conjugate. pivots: (batch,
// n), contiguous.
struct LuSolve {
  View x;
  View factors;
  View pivots;
  View b;
  bool is_transposed = false;
};
void lu_solve(Plan& plan, const LuSolve& call, const Device& device);

// Applies `count` row interchanges from `first` on (xLASWP), or undoes them if is_backward. x:
// (batch, rows, columns) of padded_rows(). pivots: (batch, ...).
void lu_swap_rows(Plan& plan, const Device& device, const View& x, const View& pivots,
                  int64_t first, int64_t count, bool is_backward = false);

}  // namespace metalops::plans
