// Solving with triangular matrices, for the operators whose factors are triangular.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

namespace metalops {

struct Triangle {
  bool is_upper;
  bool is_unit = false;  // its diagonal is taken for ones
};

// op(A) X = B in place. a: (batch, n, n), of any strides, transposed or conjugate views too; only
// its triangle is read. x: B, and X afterwards; (batch, n, columns) of padded_rows() in
// matrix_rows.h, or a part of it from a column that begins a pack.
METALOPS_HIDDEN void solve_triangular_(const at::Tensor& a, Triangle triangle, const at::Tensor& x);

}  // namespace metalops
