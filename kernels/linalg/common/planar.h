// Elements of column-major matrices in planar complex storage: each column holds its real parts
// followed, `ld` floats behind, by its imaginary parts. Adjacent threads process adjacent rows,
// so that loads are coalesced, and all arithmetic is on plain floats.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/pivots.h>

namespace metalops {

template <typename T>
struct Parts;

template <>
struct Parts<float> {
  static constexpr constant uint kWidth = 8;  // columns that a thread processes at once
  static constexpr constant uint kParts = 1;
  float real;

  static Parts of(float x) { return {x}; }
  float scalar() const { return real; }
  static Parts load(device const float* x, ulong) { return {x[0]}; }
  void store(device float* x, ulong) const { x[0] = real; }
  bool is_zero() const { return real == 0.0f; }
  float magnitude() const { return pivot_magnitude(real); }
  Parts or_else(Parts other, bool condition) const { return {condition ? real : other.real}; }
  Parts real_if(bool) const { return {real}; }
  Parts conjugate_if(bool) const { return {real}; }
  Parts minus(Parts a) const { return {real - a.real}; }
  Parts minus_product(Parts a, Parts b) const { return {::metal::fma(-a.real, b.real, real)}; }
  Parts times(Parts a) const { return {real * a.real}; }
  Parts divided_by(Parts a) const { return {real / a.real}; }
};

template <>
struct Parts<::metal::float2> {
  static constexpr constant uint kWidth = 4;
  static constexpr constant uint kParts = 2;
  float real;
  float imaginary;

  static Parts of(::metal::float2 x) { return {x.x, x.y}; }
  ::metal::float2 scalar() const { return ::metal::float2(real, imaginary); }
  static Parts load(device const float* x, ulong ld) { return {x[0], x[ld]}; }
  void store(device float* x, ulong ld) const {
    x[0] = real;
    x[ld] = imaginary;
  }
  bool is_zero() const { return real == 0.0f && imaginary == 0.0f; }
  float magnitude() const { return pivot_magnitude(scalar()); }
  Parts or_else(Parts other, bool condition) const {
    return {condition ? real : other.real, condition ? imaginary : other.imaginary};
  }
  Parts real_if(bool condition) const { return {real, condition ? 0.0f : imaginary}; }
  Parts conjugate_if(bool condition) const { return {real, condition ? -imaginary : imaginary}; }
  Parts minus(Parts a) const { return {real - a.real, imaginary - a.imaginary}; }
  Parts minus_product(Parts a, Parts b) const {
    return {::metal::fma(a.imaginary, b.imaginary, ::metal::fma(-a.real, b.real, real)),
            ::metal::fma(-a.imaginary, b.real, ::metal::fma(-a.real, b.imaginary, imaginary))};
  }
  Parts times(Parts a) const { return Parts{0.0f, 0.0f}.minus_product({-real, -imaginary}, a); }
  // Returns the quotient by Smith's method, as Divisor of row_packs.h does.
  Parts divided_by(Parts a) const {
    const bool is_steep = ::metal::abs(a.real) < ::metal::abs(a.imaginary);
    const float large = is_steep ? a.imaginary : a.real;
    const float small = is_steep ? -a.real : a.imaginary;
    const float x = is_steep ? imaginary : real;
    const float y = is_steep ? -real : imaginary;
    const float ratio = small == 0.0f ? 0.0f : small / large;
    const float whole = ::metal::fma(small, ratio, large);
    return {::metal::fma(ratio, y, x) / whole, ::metal::fma(ratio, -x, y) / whole};
  }
};

}  // namespace metalops
