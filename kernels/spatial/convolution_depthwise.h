// Parameters of the kernels of convolution_depthwise.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Adjacent results of a thread along the width, taps whose gradients it sums, and the threads of a
// threadgroup for these.
C10_METAL_CONSTEXPR int kDepthwisePixels = 4;
C10_METAL_CONSTEXPR int kDepthwiseTaps = 9;
C10_METAL_CONSTEXPR int kDepthwiseThreads = 256;
// Rows of a thread of the kernels of convolution_depthwise_square.h.
C10_METAL_CONSTEXPR int kDepthwiseRows = 4;
// Their threadgroups could have so many threads: compilers then leave enough registers for two of
// them at once.
C10_METAL_CONSTEXPR int kDepthwiseMostThreads = 512;

// A convolution whose groups have one channel of the input and `multiple` of the result. Result
// element t of a dimension is the sum of filter[q] times the input at first + t * step + q * move.
// Strides are in elements: of channels, depth, height and width.
struct DepthwiseParameters {
  int64_t input_image;
  int64_t result_image;
  int64_t result_begin;
  int64_t weight_begin;
  int32_t input_strides[4];
  int32_t result_strides[4];
  int32_t weight_strides[4];
  int32_t images;
  int32_t channels;  // of the result
  int32_t multiple;
  int32_t count[3];
  int32_t across;  // threads along the width, and along the height if they have several rows
  int32_t down;
  int32_t filters[3];
  int32_t first[3];
  int32_t step[3];
  int32_t move[3];
  int32_t limits[3];
  int32_t splits;
  int32_t has_bias;
  int32_t unused;
};

}  // namespace metalops
