// Launch plan of kernels/linalg/triangular.metal: triangular systems (xTRSM) of any size, halved
// until a kernel solves them; the off-diagonal blocks are GEMMs.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

struct Triangle {
  bool is_upper;
  bool is_unit = false;  // the diagonal is taken as ones
};

// Solves op(A) X = B in place. a: (batch, n, n), of any strides, also a transposed or conjugate
// view; only its triangle is read. x: (batch, n, columns) of padded_rows(), or a part of it from a
// column on that begins a vector.
void solve_triangular(Plan& plan, const View& a, Triangle triangle, const View& x,
                      const Device& device);

}  // namespace metalops::plans
