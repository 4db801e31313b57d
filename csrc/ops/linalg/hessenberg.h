// Reduction of general matrices to Hessenberg form (csrc/ops/linalg/hessenberg.mm).
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/linalg/common/squares.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// H = Q^H (D^-1 A D) Q 2^-exponent, whose elements are at most about 1. Matrices are stored as in
// blocked_reduction.h.
struct Hessenberg {
  int64_t stride;        // leading dimension, in vectors
  at::Tensor h;          // (batch, n, row), by columns
  at::Tensor q;          // likewise; undefined if it is not wanted
  at::Tensor scales;     // (batch, n) exponents of D
  at::Tensor exponents;  // (batch): of the power of two
};

// Reduces a: (batch, n, n). Sets infos to 0, or to kEigNotFinite where `a` is not finite and H is
// that of a zero matrix.
METALOPS_HIDDEN Hessenberg hessenberg_of(const at::Tensor& a, const SquaresParameters& parameters,
                                         bool with_q, const at::Tensor& infos);

}  // namespace metalops
