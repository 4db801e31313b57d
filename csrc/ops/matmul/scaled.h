// The shared host code of GEMMs with scaled operands (FP8, MXFP4/8, NVFP4).
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/metal/common.h>
#include <csrc/ops/quantized/narrow_float.h>
#include <kernels/matmul/scaled_mm.h>
#include <metalops/library.h>

#include <cstdint>
#include <optional>

namespace metalops::scaled {

METALOPS_HIDDEN inline bool is_fp4(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat4_e2m1fn_x2;
}
METALOPS_HIDDEN inline bool is_fp8(const at::Tensor& tensor) {
  return is_narrow_float(tensor.scalar_type()) && tensor.scalar_type() != at::kFloat8_e8m0fnu;
}

METALOPS_HIDDEN inline NarrowFormat format_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat8_e4m3fn:
      return NarrowFormat::kE4m3;
    case at::kFloat8_e5m2:
      return NarrowFormat::kE5m2;
    case at::kFloat8_e4m3fnuz:
      return NarrowFormat::kE4m3fnuz;
    case at::kFloat8_e5m2fnuz:
      return NarrowFormat::kE5m2fnuz;
    default:
      TORCH_INTERNAL_ASSERT(is_fp4(tensor));
      return NarrowFormat::kE2m1;
  }
}

// Returns the kernels' name of a result's dtype; nothing for dtypes that the kernels do not store.
METALOPS_HIDDEN inline std::optional<ScaledResult> result_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ScaledResult::kFloat;
    case at::kHalf:
      return ScaledResult::kHalf;
    case at::kBFloat16:
      return ScaledResult::kBfloat;
    case at::kFloat8_e4m3fn:
      return ScaledResult::kE4m3;
    case at::kFloat8_e5m2:
      return ScaledResult::kE5m2;
    case at::kFloat8_e4m3fnuz:
      return ScaledResult::kE4m3fnuz;
    case at::kFloat8_e5m2fnuz:
      return ScaledResult::kE5m2fnuz;
    default:
      return std::nullopt;
  }
}

// The kinds of kernels, by the dtype of block scales; see kernels/matmul/scaled_operands.h.
enum class Kind { kWhole, kFloat, kE8m0, kE4m3 };

METALOPS_HIDDEN inline const char* name_of(Kind kind) {
  return kind == Kind::kWhole   ? "whole"
         : kind == Kind::kFloat ? "float"
         : kind == Kind::kE8m0  ? "e8m0"
                                : "e4m3";
}

METALOPS_HIDDEN inline int64_t blocks_of(int64_t size, int64_t block) {
  return c10::metal::ceil_div(size, block);
}

}  // namespace metalops::scaled
