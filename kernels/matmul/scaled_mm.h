// Parameters of the kernels of scaled_mm.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// 8-bit float formats, and 4-bit E2M1 with two elements per byte.
enum class NarrowFormat : int32_t { kE4m3, kE5m2, kE4m3fnuz, kE5m2fnuz, kE2m1 };

enum class ScaledResult : int32_t { kFloat, kHalf, kBfloat, kE4m3, kE5m2, kE4m3fnuz, kE5m2fnuz };

// The layout of an operand's scales: one scale per block of `lines` lines and `inner` elements
// along K. Swizzled scales are ordered as by torchao's to_blocked().
struct ScalePlaces {
  int64_t line_stride;
  int64_t inner_stride;
  int32_t lines;
  int32_t inner;
  int32_t across;  // swizzled: groups of four scales per line
  bool is_swizzled;
  int64_t first;  // index of the first scale, and of the last one that exists
  int64_t last;
};

// Parameters of the kernel that dequantises an operand.
struct ScaledDecode {
  int64_t line_stride;  // in bytes
  int64_t inner_stride;
  NarrowFormat format;
  ScalePlaces scales;
};

// The product of a dequantised rows x inner matrix and a quantised columns x inner one, transposed.
struct ScaledParameters {
  int64_t left_stride;   // of lines
  int64_t right_stride;  // in bytes
  int32_t rows;
  int32_t columns;
  int32_t inner;
  NarrowFormat format;
  ScalePlaces scales;
  // Strides of the scales of whole rows and columns; 0 if all share one.
  int32_t row_step;
  int32_t column_step;
  ScaledResult result;
  bool has_bias;
  bool has_result_scale;
};

}  // namespace metalops
