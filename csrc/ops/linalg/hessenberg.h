// Reduction of general matrices to Hessenberg matrices: csrc/ops/linalg/hessenberg.mm.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/linalg/common/squares.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// H = Q^H (D^-1 A D) Q 2^-exponent, whose elements are at most about 1. Matrices are columns of
// packs (column_stride() of two_sided.h), with zeros behind their rows.
struct Hessenberg {
  int64_t stride;        // packs from column to column
  at::Tensor h;          // (batch, n, row), by columns
  at::Tensor q;          // likewise; undefined if it is not wanted
  at::Tensor scales;     // (batch, n) exponents of D
  at::Tensor exponents;  // (batch)
};

// a: (batch, n, n). infos: becomes 0, or kEigNotFinite where H is of a zero matrix.
METALOPS_HIDDEN Hessenberg hessenberg_of(const at::Tensor& a, const SquaresParameters& parameters,
                                         bool with_q, const at::Tensor& infos);

}  // namespace metalops
