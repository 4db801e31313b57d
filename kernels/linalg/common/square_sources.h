// The square matrices (squares.h) that an algorithm begins with: how at(row, column) finds an
// element in the caller's memory.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>
#include <kernels/linalg/common/squares.h>

namespace metalops {

template <typename T>
struct GeneralSource {
  device const T* matrix;
  constant SquaresParameters& p;

  T at(int row, int column) const { return matrix[row * p.row_stride + column * p.column_stride]; }

  // Returns how many elements of each column, from the first one on, have all magnitudes of the
  // matrix.
  int distinct_rows(int) const { return p.size; }
};

// The adjoint of a general matrix.
template <typename T>
struct AdjointSource {
  device const T* matrix;
  constant SquaresParameters& p;

  T at(int row, int column) const {
    return conjugate(matrix[row * p.column_stride + column * p.row_stride]);
  }
};

// A Hermitian (or real symmetric) matrix of which one triangle is read.
template <typename T>
struct HermitianSource {
  device const T* matrix;
  constant SquaresParameters& p;

  // Returns an element; those on the diagonal are real.
  T at(int row, int column) const {
    const bool is_stored = p.is_upper ? row <= column : row >= column;
    const T x = is_stored ? matrix[row * p.row_stride + column * p.column_stride]
                          : conjugate(matrix[column * p.row_stride + row * p.column_stride]);
    return row == column ? from_real<T>(real_part(x)) : x;
  }

  int distinct_rows(int column) const { return column + 1; }
};

}  // namespace metalops
