// Parameters of the kernels of upsample_aa.metal.
#pragma once
#include <c10/metal/common.h>

#include <kernels/common/split_double.h>

namespace metalops {

enum AntialiasFilter : int32_t { kBilinear, kBicubic, kLanczos };

// An axis that is resized from `inputs` to `outputs` pixels.
struct AxisParameters {
  int64_t inputs;
  int64_t outputs;
  int64_t taps;       // most weights per output pixel
  SplitDouble scale;  // input pixels per output pixel
  float support;      // half the filter's width, in input pixels
  float sharpness;    // the filter's argument at a distance of one input pixel
  AntialiasFilter filter;
};

// Output elements per thread; they share their weights.
C10_METAL_CONSTEXPR unsigned kResizeBlock = 8;

// The sizes of a (rows, inputs, inner) tensor whose middle axis is resized.
struct ResizeParameters {
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
  int64_t inner;
  int64_t taps;
};

}  // namespace metalops
