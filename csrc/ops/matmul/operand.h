// Operands of GEMM kernels: how kernels find the elements of a matrix, and the sizes they support.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <csrc/ops/common/int32.h>
#include <metalops/library.h>

#include <cstdint>

namespace metalops {

// A matrix as GEMM kernels read it: `lines` rows of A, or columns of B, of `inner` elements along
// K. stride: the leading dimension. tensor: its memory; see matmul::Dense of
// kernels/common/matmul.h.
struct METALOPS_HIDDEN ProductOperand {
  at::Tensor tensor;
  int64_t lines;
  int64_t inner;
  int64_t stride;
  bool is_transposed;
};

// Returns the operand of a matrix (lines, K). It is copied unless one of the two dimensions is
// contiguous.
METALOPS_HIDDEN inline ProductOperand product_operand(const at::Tensor& matrix) {
  const auto lines = matrix.size(0);
  const auto inner = matrix.size(1);
  if (lines > 0 && inner > 0) {
    const auto by_line = lines == 1 ? inner : matrix.stride(0);
    if ((inner == 1 || matrix.stride(1) == 1) && by_line >= inner && by_line <= kInt32Max) {
      return {matrix, lines, inner, by_line, false};
    }
    const auto by_element = inner == 1 ? lines : matrix.stride(1);
    if (matrix.stride(0) == 1 && by_element >= lines && by_element <= kInt32Max / inner) {
      return {matrix, lines, inner, by_element, true};
    }
  }
  return {matrix.contiguous(), lines, inner, inner, false};
}

// A batch of at least one matrix, with one stride between them.
struct METALOPS_HIDDEN ProductOperands {
  ProductOperand first;
  int64_t step;
};

METALOPS_HIDDEN inline ProductOperands product_operands(const at::Tensor& matrices) {
  auto one = product_operand(matrices[0]);
  if (one.tensor.is_same(matrices[0]) || one.tensor.data_ptr() == matrices[0].data_ptr()) {
    return {one, matrices.size(0) == 1 ? 0 : matrices.stride(0)};
  }
  const auto dense = matrices.contiguous();
  return {product_operand(dense[0]), dense.stride(0)};
}

// Returns a size as GEMM kernels count it. name: of the operator; what: names the argument and its
// dimension in the error.
METALOPS_HIDDEN inline int32_t product_size(const char* name, int64_t size, const char* what) {
  return checked_int32(size, kLargestTiledSize, name, ": ", what, " of size");
}

}  // namespace metalops
