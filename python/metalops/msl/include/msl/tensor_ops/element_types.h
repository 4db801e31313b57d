// The element types that a matmul takes, from the table of Metal Performance Primitives.
#pragma once

#include <msl/numeric_format.h>

namespace msl::msl_impl {

enum class Element : uint {
  kNone,
  kHalf,
  kBfloat,
  kFloat,
  kInt8,
  kUint8,
  kInt32,
  kInt4,
  kUint4,
  kInt2,
  kUint2,
  kE2m1,
  kE4m3,
  kE5m2,
};

template <class T>
inline constexpr Element element_of_product = Element::kNone;
#define MSL_ELEMENT(T, KIND) \
  template <>                \
  inline constexpr Element element_of_product<T> = Element::KIND;
MSL_ELEMENT(half, kHalf)
MSL_ELEMENT(bfloat, kBfloat)
MSL_ELEMENT(float, kFloat)
MSL_ELEMENT(signed char, kInt8)
MSL_ELEMENT(char, kInt8)
MSL_ELEMENT(uchar, kUint8)
MSL_ELEMENT(int, kInt32)
MSL_ELEMENT(metal::int4b_format, kInt4)
MSL_ELEMENT(metal::uint4b_format, kUint4)
MSL_ELEMENT(metal::int2b_format, kInt2)
MSL_ELEMENT(metal::uint2b_format, kUint2)
MSL_ELEMENT(metal::metal_fp4_e2m1_format, kE2m1)
MSL_ELEMENT(metal::metal_fp8_e4m3_format, kE4m3)
MSL_ELEMENT(metal::metal_fp8_e5m2_format, kE5m2)
#undef MSL_ELEMENT

// Formats do not exist in Metal 4.0, and some of them only from 4.1 on.
constexpr bool is_product(Element left, Element right, Element result, bool has_small_formats) {
  using enum Element;
  const bool byte_left = left == kInt8 || left == kUint8;
  const bool byte_right = right == kInt8 || right == kUint8;
  const bool nibbles = right == kInt4 || right == kUint4;
  const bool crumbs = (right == kInt2 || right == kUint2) && has_small_formats;
  const bool small_right = byte_right || nibbles || crumbs;
  switch (left) {
    case kHalf:
      if (right == kFloat) return result == kFloat;
      if (right == kBfloat) return result == kBfloat || result == kHalf || result == kFloat;
      if (right == kE2m1 || right == kE4m3 || right == kE5m2) {
        return has_small_formats && (result == kHalf || result == kFloat);
      }
      return (right == kHalf || small_right) && (result == kHalf || result == kFloat);
    case kBfloat:
      if (right == kFloat) return result == kFloat;
      if (right == kHalf) return result == kBfloat || result == kHalf || result == kFloat;
      return (right == kBfloat || small_right) && (result == kBfloat || result == kFloat);
    case kFloat:
      return result == kFloat &&
             (right == kHalf || right == kBfloat || right == kFloat || byte_right);
    case kInt8:
    case kUint8:
      if (right == kFloat) return result == kFloat;
      if (right == kHalf) return result == kHalf || result == kFloat;
      if (right == kBfloat) return result == kBfloat || result == kFloat;
      if (left == kInt8) {
        return result == kInt32 &&
               (right == kInt8 || right == kInt4 || (right == kInt2 && has_small_formats));
      }
      return result == kInt32 &&
             (right == kUint8 || right == kUint4 || (right == kUint2 && has_small_formats));
    case kE2m1:
    case kE4m3:
    case kE5m2:
      return has_small_formats && left == right && (result == kHalf || result == kFloat);
    default:
      return false;
  }
}
constexpr bool is_less_than_a_byte(Element element) {
  using enum Element;
  return element == kInt4 || element == kUint4 || element == kInt2 || element == kUint2 ||
         element == kE2m1;
}

}  // namespace msl::msl_impl
