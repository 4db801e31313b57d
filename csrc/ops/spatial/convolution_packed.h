// Host side of kernels/spatial/convolution_packed.metal: convolutions on a GPU of images whose
// channels are adjacent in memory, in whole packs of 16 bytes. Others are copied so first.
#pragma once
#include <ATen/core/Tensor.h>
#include <csrc/ops/common/maybe_tensor.h>
#include <csrc/plans/plan.h>
#include <kernels/spatial/convolution.h>

#include <array>
#include <cstdint>

namespace metalops::convolution {

// Sizes, positions or strides along depth, height and width.
using Dims = std::array<int64_t, kConvolutionDims>;

// How one dimension of the result comes from an input and a filter: element result_first + t *
// result_step is the sum of filter[filter_first + q * filter_step] times the input at position
// first + t * step + q * move, for the `filters` values of q.
struct Taps {
  Dims first, count, step;
  Dims filter_first, filters, filter_step, move;
  Dims result_first, result_step;
};

// The weight of a product: strides and sizes of the channels of results and of inputs, in a group.
struct Weight {
  const at::Tensor& tensor;
  int64_t out, in;  // dimensions of the channels of results and inputs
  int64_t out_channels, in_channels;
};

// Images, as they are or packed.
struct Images {
  at::Tensor tensor;
  bool are_packed;
};

inline constexpr Dims kOnes{1, 1, 1};
using plans::ceil_div;
inline int64_t product(const Dims& sizes) { return sizes[0] * sizes[1] * sizes[2]; }
Dims strides_of(const at::Tensor& tensor, const Dims& steps);
int64_t offset_at(const at::Tensor& tensor, const Dims& position);

// Returns a tensor with the channels of each group adjacent and padded to whole packs: itself, if
// it has them.
METALOPS_HIDDEN at::Tensor packed(const at::Tensor& tensor, int64_t groups);
// Returns the images packed, if products with this weight are then faster.
METALOPS_HIDDEN Images packed_if_it_pays(const at::Tensor& images, const Weight& weight,
                                         const at::Tensor& result, int64_t groups);
// Writes the elements of `result` that the taps name.
METALOPS_HIDDEN void convolve_packed(const at::Tensor& result, const at::Tensor& images,
                                     const Weight& weight, const Taps& taps, int64_t groups,
                                     const MaybeTensor& bias);
// Computes the gradient of the weight of a convolution, if that is faster with packs; else returns
// false. taps: of the result.
METALOPS_HIDDEN bool convolve_weight_packed(const at::Tensor& result, const at::Tensor& input,
                                            const at::Tensor& outputs, const Taps& taps,
                                            int64_t groups);

}  // namespace metalops::convolution
