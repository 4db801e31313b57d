// Parameters of the kernels of upsample_aa.metal.
#pragma once
#include <c10/metal/common.h>

#include <kernels/common/split_double.h>

namespace metalops {

enum AntialiasFilter : int32_t { kBilinear, kBicubic, kLanczos };

// An axis along which `inputs` pixels are resized to `outputs` pixels.
struct AxisParameters {
  int64_t inputs;
  int64_t outputs;
  int64_t taps;       // the most weights that an output pixel may have
  SplitDouble scale;  // input pixels for each output pixel
  float support;      // half the width of the filter, in input pixels
  float sharpness;    // the filter's argument for a distance of one input pixel
  AntialiasFilter filter;
};

// The output elements of a thread, which share their weights.
C10_METAL_CONSTEXPR unsigned kResizeBlock = 8;

// A tensor of `rows` times `inputs` times `inner` elements is resized in the middle.
struct ResizeParameters {
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
  int64_t inner;
  int64_t taps;
};

}  // namespace metalops
