// What the operators on quantised weights have in common on the host.
#pragma once
#include <ATen/core/Tensor.h>
#include <kernels/quantized/quantized.h>
#include <metalops/library.h>

#include <optional>
#include <string_view>

namespace metalops {

// Quantised weights as kernels read them: without gaps, and how they are laid out. codes: (...,
// lines, bytes).
struct METALOPS_HIDDEN QuantizedWeights {
  at::Tensor codes;
  at::Tensor scales;
  at::Tensor biases;        // scales where there are none
  at::Tensor global_scale;  // scales where there is none
  PackedLayout layout;
};

// The layout of `lines` times `inner` codes. ValueError for what no mode has.
METALOPS_HIDDEN PackedLayout packed_layout(const char* name, int64_t lines, int64_t inner,
                                           int64_t bits, int64_t group_size, std::string_view mode);

METALOPS_HIDDEN at::ScalarType scale_type(const PackedLayout& layout, at::ScalarType element);

// ValueError for wrong shapes and dtypes. element: what the weights are multiplied in.
METALOPS_HIDDEN QuantizedWeights quantized_weights(const char* name, const at::Tensor& packed,
                                                   const at::Tensor& scales,
                                                   const std::optional<at::Tensor>& biases,
                                                   const std::optional<at::Tensor>& global_scale,
                                                   int64_t bits, int64_t group_size,
                                                   std::string_view mode, at::ScalarType element);

}  // namespace metalops
