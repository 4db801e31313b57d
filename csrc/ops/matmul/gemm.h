// Batched GEMM of all dtypes, by kernels/matmul/gemm.metal.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

#include <optional>

namespace metalops {

// The addend of a product: beta tensor + alpha left right.
struct GemmAdded {
  const at::Tensor& tensor;
  const at::Scalar& beta;
  const at::Scalar& alpha;
};

// Returns true for the dtypes that gemm() multiplies.
METALOPS_HIDDEN bool has_gemm(at::ScalarType type);

// Writes the product of (M, K) and (K, N), or of a batch (B, M, K) and (B, K, N), to `out`, which
// has its sizes and the operands' dtype, or float32 if that is of half precision. The addend has
// the sizes of the result, too. Raises RuntimeError if `out` overlaps an operand, or for sizes that
// are too large. name: of the operator, for these errors.
METALOPS_HIDDEN void gemm(const char* name, const at::Tensor& out, const at::Tensor& left,
                          const at::Tensor& right, const std::optional<GemmAdded>& added);

}  // namespace metalops
