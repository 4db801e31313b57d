// Parameters of the kernels of fake_quantize.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The rounding of zero points before they are used.
enum class ZeroPointRounding : uint32_t {
  kNone,
  kNearest,  // to the nearest integer, then clamped to the range
  kHalfUp,   // plus 1/2, clamped to the range, then truncated
};

struct FakeQuantizeParameters {
  int64_t count;     // number of elements
  int64_t inner;     // contiguous elements that share a channel
  int64_t channels;  // 1 if all elements share one scale
  float quant_min;
  float quant_max;
  float grad_factor;
  ZeroPointRounding rounding;
  // True if the zero point is added before x / scale is rounded, not after. The results differ only
  // if the zero point is no integer and x / scale is halfway between two integers.
  uint32_t adds_before_rounding;
};

struct MovingAverageParameters {
  int64_t channels;
  float averaging_constant;
  float quant_min;
  float quant_max;
  uint32_t symmetric;
};

}  // namespace metalops
