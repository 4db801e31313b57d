// Vectors of four adjacent elements, real (T = float) or complex (T = float2). Complex ones are
// planar in registers and interleaved in memory. Memory needs no alignment but an element's.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/complex.h>

namespace metalops {

template <typename T>
struct Pack;

template <>
struct Pack<float> {
  ::metal::float4 re;
};

template <>
struct Pack<::metal::float2> {
  ::metal::float4 re;
  ::metal::float4 im;
};

using RealPack = Pack<float>;
using ComplexPack = Pack<::metal::float2>;

template <typename T>
METAL_FUNC Pack<T> zero_pack();
template <>
METAL_FUNC RealPack zero_pack<float>() {
  return {::metal::float4(0.0f)};
}
template <>
METAL_FUNC ComplexPack zero_pack<::metal::float2>() {
  return {::metal::float4(0.0f), ::metal::float4(0.0f)};
}

METAL_FUNC RealPack all_of(float a) { return {::metal::float4(a)}; }
METAL_FUNC ComplexPack all_of(::metal::float2 a) {
  return {::metal::float4(a.x), ::metal::float4(a.y)};
}

// ---- memory -------------------------------------------------------------------------------------

METAL_FUNC RealPack load(device const float* x) {
  return {::metal::float4(*reinterpret_cast<device const ::metal::packed_float4*>(x))};
}
METAL_FUNC ComplexPack load(device const ::metal::float2* x) {
  device const ::metal::packed_float4* halves =
      reinterpret_cast<device const ::metal::packed_float4*>(x);
  const ::metal::float4 low = halves[0];
  const ::metal::float4 high = halves[1];
  return {::metal::float4(low.xz, high.xz), ::metal::float4(low.yw, high.yw)};
}

METAL_FUNC void store(device float* x, RealPack a) {
  *reinterpret_cast<device::metal::packed_float4*>(x) = a.re;
}
METAL_FUNC void store(device::metal::float2* x, ComplexPack a) {
  device::metal::packed_float4* halves = reinterpret_cast<device::metal::packed_float4*>(x);
  halves[0] = ::metal::float4(a.re.x, a.im.x, a.re.y, a.im.y);
  halves[1] = ::metal::float4(a.re.z, a.im.z, a.re.w, a.im.w);
}

METAL_FUNC float element(RealPack a, uint i) { return a.re[i]; }
METAL_FUNC ::metal::float2 element(ComplexPack a, uint i) {
  return ::metal::float2(a.re[i], a.im[i]);
}

METAL_FUNC void set_element(thread RealPack& a, uint i, float x) { a.re[i] = x; }
METAL_FUNC void set_element(thread ComplexPack& a, uint i, ::metal::float2 x) {
  a.re[i] = x.x;
  a.im[i] = x.y;
}

// Loads the first `count` of four elements, which may be none or all of them (count < 0, count >
// 4); the other ones are zero.
template <typename T>
METAL_FUNC Pack<T> load_some(device const T* x, int count) {
  if (count >= 4) {
    return load(x);
  }
  Pack<T> result = zero_pack<T>();
  for (int i = 0; i < 3; ++i) {
    if (i < count) {
      set_element(result, i, x[i]);
    }
  }
  return result;
}

template <typename T>
METAL_FUNC void store_some(device T* x, Pack<T> a, int count) {
  if (count >= 4) {
    store(x, a);
    return;
  }
  for (int i = 0; i < 3; ++i) {
    if (i < count) {
      x[i] = element(a, i);
    }
  }
}

// ---- arithmetic ---------------------------------------------------------------------------------

// Returns elements of b where the mask is true, of a where it is false.
METAL_FUNC RealPack choose(RealPack a, RealPack b, ::metal::bool4 mask) {
  return {::metal::select(a.re, b.re, mask)};
}
METAL_FUNC ComplexPack choose(ComplexPack a, ComplexPack b, ::metal::bool4 mask) {
  return {::metal::select(a.re, b.re, mask), ::metal::select(a.im, b.im, mask)};
}

METAL_FUNC RealPack conjugate(RealPack a) { return a; }
METAL_FUNC ComplexPack conjugate(ComplexPack a) { return {a.re, -a.im}; }

METAL_FUNC RealPack scaled(RealPack a, float factor) { return {a.re * factor}; }
METAL_FUNC ComplexPack scaled(ComplexPack a, float factor) {
  return {a.re * factor, a.im * factor};
}

// Returns sum + a b.
METAL_FUNC RealPack multiply_add(RealPack sum, RealPack a, RealPack b) {
  return {::metal::fma(a.re, b.re, sum.re)};
}
METAL_FUNC ComplexPack multiply_add(ComplexPack sum, ComplexPack a, ComplexPack b) {
  return {::metal::fma(a.re, b.re, ::metal::fma(-a.im, b.im, sum.re)),
          ::metal::fma(a.re, b.im, ::metal::fma(a.im, b.re, sum.im))};
}

// Returns sum + conj(a) b.
METAL_FUNC RealPack conjugate_multiply_add(RealPack sum, RealPack a, RealPack b) {
  return multiply_add(sum, a, b);
}
METAL_FUNC ComplexPack conjugate_multiply_add(ComplexPack sum, ComplexPack a, ComplexPack b) {
  return {::metal::fma(a.re, b.re, ::metal::fma(a.im, b.im, sum.re)),
          ::metal::fma(a.re, b.im, ::metal::fma(-a.im, b.re, sum.im))};
}

METAL_FUNC RealPack divided(RealPack a, float divisor) { return {a.re / divisor}; }
METAL_FUNC ComplexPack divided(ComplexPack a, ::metal::float2 divisor) {
  ComplexPack result = a;
  for (uint i = 0; i < 4; ++i) {
    set_element(result, i, divide(element(a, i), divisor));
  }
  return result;
}

METAL_FUNC float sum_of(RealPack a) { return (a.re.x + a.re.y) + (a.re.z + a.re.w); }
METAL_FUNC ::metal::float2 sum_of(ComplexPack a) {
  return ::metal::float2((a.re.x + a.re.y) + (a.re.z + a.re.w),
                         (a.im.x + a.im.y) + (a.im.z + a.im.w));
}

// Returns sum + |a|^2 of each element.
METAL_FUNC ::metal::float4 add_squares(::metal::float4 sum, RealPack a) {
  return ::metal::fma(a.re, a.re, sum);
}
METAL_FUNC ::metal::float4 add_squares(::metal::float4 sum, ComplexPack a) {
  return ::metal::fma(a.re, a.re, ::metal::fma(a.im, a.im, sum));
}

METAL_FUNC ::metal::float4 largest_parts(RealPack a) { return ::metal::abs(a.re); }
METAL_FUNC ::metal::float4 largest_parts(ComplexPack a) {
  return ::metal::max(::metal::abs(a.re), ::metal::abs(a.im));
}

}  // namespace metalops
