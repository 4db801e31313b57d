// 16-byte vectors (float4, "packs") along the rows of a row-major matrix of T: four float, or two
// float2 (complex, interleaved). A thread processes one pack at a time. (column_packs.h: vectors
// along columns.)
#pragma once
#include <c10/metal/common.h>

namespace metalops {

C10_METAL_CONSTEXPR unsigned kRowPackBytes = 16;

}  // namespace metalops

#ifdef __METAL__
#include <metal_stdlib>

namespace metalops {

template <typename T>
constexpr constant unsigned kColumnsOfPack = kRowPackBytes / sizeof(T);

METAL_FUNC float column(::metal::float4 pack, unsigned i, float) { return pack[i]; }
METAL_FUNC ::metal::float2 column(::metal::float4 pack, unsigned i, ::metal::float2) {
  return i == 0 ? pack.xy : pack.zw;
}

METAL_FUNC void set_column(thread::metal::float4& pack, unsigned i, float value) {
  pack[i] = value;
}
METAL_FUNC void set_column(thread::metal::float4& pack, unsigned i, ::metal::float2 value) {
  pack = i == 0 ? ::metal::float4(value, pack.zw) : ::metal::float4(pack.xy, value);
}

METAL_FUNC ::metal::float4 all_columns(float value) { return ::metal::float4(value); }
METAL_FUNC ::metal::float4 all_columns(::metal::float2 value) { return value.xyxy; }

// Returns the mask of a pack's columns before column i, from none (i = 0) to all of them.
template <typename T>
METAL_FUNC ::metal::bool4 columns_before(unsigned i) {
  return sizeof(T) == sizeof(float) ? ::metal::uint4(0, 1, 2, 3) < ::metal::uint4(i)
                                    : ::metal::uint4(0, 0, 1, 1) < ::metal::uint4(i);
}

METAL_FUNC ::metal::float4 conjugate_columns(::metal::float4 pack, float) { return pack; }
METAL_FUNC ::metal::float4 conjugate_columns(::metal::float4 pack, ::metal::float2) {
  return ::metal::float4(pack.x, -pack.y, pack.z, -pack.w);
}

// Returns x - a y.
METAL_FUNC ::metal::float4 minus_product(::metal::float4 x, float a, ::metal::float4 y) {
  return ::metal::fma(::metal::float4(-a), y, x);
}
METAL_FUNC ::metal::float4 minus_product(::metal::float4 x, ::metal::float2 a, ::metal::float4 y) {
  x = ::metal::fma(::metal::float4(-a.x), y, x);
  return ::metal::fma(::metal::float4(a.y), ::metal::float4(y.y, -y.x, y.w, -y.z), x);
}

// A divisor of many elements.
template <typename T>
struct Divisor;

// Like LAPACK, this multiplies by the reciprocal, unless that is too large or too small for a
// normal number: division is slow on a GPU.
template <>
struct Divisor<float> {
  float value;
  float inverse;

  template <typename X>  // float or a pack
  X divide(X x) const thread {
    return ::metal::isnormal(inverse) ? x * inverse : x / value;
  }
};

METAL_FUNC Divisor<float> divisor_of(float number) { return {number, 1.0f / number}; }

// R. L. Smith's complex division (Communications of the ACM 5, 1962), which squares nothing.
template <>
struct Divisor<::metal::float2> {
  bool is_steep;  // closer to the imaginary axis: dividends are multiplied by -i
  float ratio;
  Divisor<float> whole;

  ::metal::float4 divide(::metal::float4 x) const thread {
    x = is_steep ? ::metal::float4(x.y, -x.x, x.w, -x.z) : x;
    return whole.divide(
        ::metal::fma(::metal::float4(ratio), ::metal::float4(x.y, -x.x, x.w, -x.z), x));
  }
  ::metal::float2 divide(::metal::float2 x) const thread {
    return divide(::metal::float4(x, 0.0f, 0.0f)).xy;
  }
};

METAL_FUNC Divisor<::metal::float2> divisor_of(::metal::float2 number) {
  const bool is_steep = ::metal::abs(number.x) < ::metal::abs(number.y);
  const ::metal::float2 rotated = is_steep ? ::metal::float2(number.y, -number.x) : number;
  // A real divisor, also zero, divides as a real number.
  const float ratio = rotated.y == 0.0f ? 0.0f : rotated.y / rotated.x;
  return {is_steep, ratio, divisor_of(::metal::fma(rotated.y, ratio, rotated.x))};
}

}  // namespace metalops
#endif
