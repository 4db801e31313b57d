// The shared host code of the operators on quantised weights.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/quantized/quantized.h>
#include <metalops/library.h>

#include <optional>
#include <string_view>

namespace metalops {

// Quantised weights as kernels read them, contiguous, and their layout. codes: (..., rows, bytes).
struct METALOPS_HIDDEN QuantizedWeights {
  at::Tensor codes;
  at::Tensor scales;
  at::Tensor biases;        // scales where absent
  at::Tensor global_scale;  // scales where absent
  PackedLayout layout;
};

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
