// Parameters of the kernels of grid_sampler.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Numbers of torch's schema.
C10_METAL_CONSTEXPR int32_t kGridBilinear = 0;
C10_METAL_CONSTEXPR int32_t kGridNearest = 1;
C10_METAL_CONSTEXPR int32_t kGridBicubic = 2;
C10_METAL_CONSTEXPR int32_t kGridZeros = 0;
C10_METAL_CONSTEXPR int32_t kGridBorder = 1;
C10_METAL_CONSTEXPR int32_t kGridReflection = 2;

// Dimensions are in the order of a grid's coordinates: width, height, depth.
struct GridSamplerParameters {
  int64_t channels;
  int64_t lanes;           // threads that share the channels of a point
  int64_t grid_stride;     // strides are in bytes: between the coordinates of a point,
  int64_t input_channel;   // between channels of the input,
  int64_t output_channel;  // and of the output or its gradient
  int64_t strides[3];      // of the input
  int64_t pixels;          // of a channel of the gradient of the input, which is contiguous
  int32_t sizes[3];        // of the input
  int32_t padding;
  int32_t align_corners;
  int32_t channels_first;  // 1: adjacent threads have adjacent channels, else adjacent points
  int32_t has_sums;        // 1: the gradient of the input is added up
  int32_t unused;
};

}  // namespace metalops
