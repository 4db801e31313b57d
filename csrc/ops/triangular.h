// Solving with triangular matrices, for the operators whose factors are triangular.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// A batch of matrices in rows, padded to whole packs of columns, as kernels of linear algebra take
// them: (batch, rows, columns) with neighbouring columns side by side.
//
// padded_rows: of a batch of matrices (*, rows, columns), whose values are copied.
METALOPS_HIDDEN at::Tensor padded_rows(const at::Tensor& matrices);

// Without values, but zeros where it is padded.
METALOPS_HIDDEN at::Tensor empty_padded_rows(int64_t batch, int64_t rows, int64_t columns,
                                             const at::TensorOptions& options);

struct Triangle {
  bool is_upper;
  bool is_unit = false;  // its diagonal is taken for ones
};

// op(A) X = B in place. a: (batch, n, n), of any strides, transposed or conjugate views too; only
// its triangle is read. x: B, and X afterwards; (batch, n, columns) of padded_rows(), or a part of
// it from a column that begins a pack.
METALOPS_HIDDEN void solve_triangular_(const at::Tensor& a, Triangle triangle, const at::Tensor& x);

}  // namespace metalops
