// Launch plan of kernels/linalg/svd.metal: singular values and vectors.
#pragma once
#include <csrc/plans/plan.h>

namespace metalops::plans {

// a: (batch, m, n) of any strides, with elements. values: (batch, k), k the smaller of m and n,
// real and contiguous. u: (batch, m, m or k) and v_adjoint: (batch, n or k, n), of contiguous
// columns, or absent if they are not wanted. infos: (batch), int32: zero, or not if there are no
// singular values.
struct Svd {
  View u;
  View values;
  View v_adjoint;
  View infos;
  View a;
};
void svd(Plan& plan, const Svd& call, const Device& device);

}  // namespace metalops::plans
