// The shared host code of the operators on quantised weights.
#pragma once
#include <ATen/core/Tensor.h>
#include <csrc/ops/common/arguments.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/ops/common/run_plan.h>
#include <csrc/plans/quantized/quantized.h>
#include <csrc/plans/quantized/quantized_arguments.h>
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

// Returns the weights as checks see them.
METALOPS_HIDDEN plans::QuantizedWeightArguments weight_operands(
    Operands& of, const at::Tensor& packed, const at::Tensor& scales, const MaybeTensor& biases,
    const MaybeTensor& global_scale, int64_t bits, int64_t group_size, std::string_view mode);

// Returns quantised weights that have been checked, of at least two dimensions. Raises RuntimeError
// if they are too large. name: the operator's.
METALOPS_HIDDEN QuantizedWeights quantized_weights(const char* name, const at::Tensor& packed,
                                                   const at::Tensor& scales,
                                                   const MaybeTensor& biases,
                                                   const MaybeTensor& global_scale, int64_t bits,
                                                   int64_t group_size, std::string_view mode);

}  // namespace metalops
