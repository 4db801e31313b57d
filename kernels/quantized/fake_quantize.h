// Parameters of the kernels of fake_quantize.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// What becomes of zero points before they are used.
enum class ZeroPointRounding : uint32_t {
  kNone,
  kNearest,  // to the nearest integer, then into the range
  kHalfUp,   // into the range after adding 1/2, then towards zero
};

struct FakeQuantizeParameters {
  int64_t count;     // of elements
  int64_t inner;     // elements that lie together and share a channel
  int64_t channels;  // 1 if there is one scale for all
  float quant_min;
  float quant_max;
  float grad_factor;
  ZeroPointRounding rounding;
  // The zero point is added before x / scale is rounded, not after. That is a difference only where
  // it is no integer, and where x / scale is halfway between two.
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
