// Host side of kernels/spatial/convolution_depthwise.metal: convolutions on a GPU whose groups have
// one channel of the input.
#pragma once
#include <csrc/ops/spatial/convolution_packed.h>

namespace metalops::convolution {

// Returns true if these kernels convolve with the weight.
METALOPS_HIDDEN bool is_depthwise(const at::Tensor& input, const Weight& weight,
                                  const at::Tensor& result, int64_t groups);
// Writes the elements of `result` that the taps name.
METALOPS_HIDDEN void convolve_depthwise(const at::Tensor& result, const at::Tensor& input,
                                        const Weight& weight, const Taps& taps, int64_t groups,
                                        const MaybeTensor& bias);
// Computes the gradient of the weight. taps: of the outputs.
METALOPS_HIDDEN void convolve_depthwise_weight(const at::Tensor& result, const at::Tensor& input,
                                               const at::Tensor& outputs, const Taps& taps);

}  // namespace metalops::convolution
