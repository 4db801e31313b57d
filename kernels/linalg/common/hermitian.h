// Hermitian (or real symmetric) matrices of which one triangle is read.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/squares.h>

namespace metalops {

template <typename T>
struct Source {
  device const T* matrix;
  constant SquaresParameters& p;

  // Returns an element of the Hermitian matrix; those on the diagonal are real.
  T at(int row, int column) const {
    const bool is_stored = p.is_upper ? row <= column : row >= column;
    const T x = is_stored ? matrix[row * p.row_stride + column * p.column_stride]
                          : conjugate(matrix[column * p.row_stride + row * p.column_stride]);
    return row == column ? from_real<T>(real_part(x)) : x;
  }
};

}  // namespace metalops
