// Parameters of the kernels of scaled_mm.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Of numbers of 8 bits, and of 4, two in a byte.
enum class NarrowFormat : int32_t { kE4m3, kE5m2, kE4m3fnuz, kE5m2fnuz, kE2m1 };

enum class ScaledResult : int32_t { kFloat, kHalf, kBfloat, kE4m3, kE5m2, kE4m3fnuz, kE5m2fnuz };

// Where the scales of an operand are: one for `lines` of its lines and `inner` elements of the
// inner dimension, whose place is that of torchao's to_blocked() where they are swizzled.
struct ScalePlaces {
  int64_t line_stride;
  int64_t inner_stride;
  int32_t lines;
  int32_t inner;
  int32_t across;  // swizzled: how many fours of scales a line has
  bool is_swizzled;
  int64_t first;  // where they begin, and where the last one there is stands
  int64_t last;
};

// Of the kernel that decodes an operand.
struct ScaledDecode {
  int64_t line_stride;  // in bytes
  int64_t inner_stride;
  NarrowFormat format;
  ScalePlaces scales;
};

// The product of a decoded matrix of rows x inner and a coded one of columns x inner elements,
// transposed.
struct ScaledParameters {
  int64_t left_stride;   // between lines
  int64_t right_stride;  // in bytes
  int32_t rows;
  int32_t columns;
  int32_t inner;
  NarrowFormat format;
  ScalePlaces scales;
  // Of the scales of whole rows and columns: 0 where one is for all.
  int32_t row_step;
  int32_t column_step;
  ScaledResult result;
  bool has_bias;
  bool has_result_scale;
};

}  // namespace metalops
