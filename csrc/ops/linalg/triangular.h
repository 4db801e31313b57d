// Solving triangular systems, for the operators whose factors are triangular.
#pragma once
#include <ATen/core/Tensor.h>
#include <csrc/plans/linalg/triangular.h>
#include <metalops/library.h>

namespace metalops {

using plans::Triangle;

// Solves op(A) X = B in place (xTRSM). a: (batch, n, n), of any strides, also a transposed or
// conjugate view; only its triangle is read. x: (batch, n, columns) of padded_rows() in
// matrix_rows.h, or a part of it from a column on that begins a vector.
METALOPS_HIDDEN void solve_triangular_(const at::Tensor& a, Triangle triangle, const at::Tensor& x);

}  // namespace metalops
