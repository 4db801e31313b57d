// The shared host code of the operators on quantised weights.
#pragma once
#include <ATen/core/Tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/quantized/quantized.h>
#include <kernels/quantized/quantized.h>
#include <metalops/library.h>

#include <optional>
#include <string_view>

namespace metalops {

// Quantised weights that have been checked, and their layout. codes: (..., rows, bytes).
struct METALOPS_HIDDEN QuantizedWeights {
  at::Tensor codes;
  at::Tensor scales;
  std::optional<at::Tensor> biases;
  std::optional<at::Tensor> global_scale;
  int64_t group_size;
  plans::QuantizedMode mode;
  PackedLayout layout;
};

// Returns their views in a plan. is_one: all matrices are seen as one, of two dimensions.
METALOPS_HIDDEN plans::QuantizedWeights views_of(PlanRun& run, const QuantizedWeights& weights,
                                                 bool is_one = false);

// Returns the layout of `lines` rows of `inner` codes. Raises ValueError for combinations that no
// mode has.
METALOPS_HIDDEN PackedLayout packed_layout(const char* name, int64_t lines, int64_t inner,
                                           int64_t bits, int64_t group_size, std::string_view mode);

METALOPS_HIDDEN at::ScalarType scale_type(const PackedLayout& layout, at::ScalarType element);

// Checks and returns quantised weights; raises ValueError for wrong shapes and dtypes. element: the
// dtype of the product.
METALOPS_HIDDEN QuantizedWeights quantized_weights(const char* name, const at::Tensor& packed,
                                                   const at::Tensor& scales,
                                                   const std::optional<at::Tensor>& biases,
                                                   const std::optional<at::Tensor>& global_scale,
                                                   int64_t bits, int64_t group_size,
                                                   std::string_view mode, at::ScalarType element);

}  // namespace metalops
