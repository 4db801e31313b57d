// metal_math and metal_common: functions of floating-point numbers.
//
// Overloads are plain functions for each type, as in Metal: kernels in the wild add their own
// overloads next to them (MLX for bfloat, c10 for bool), which templates would make ambiguous.
// There are none for bfloat, which converts to float. half is computed in float and rounded once.
#pragma once

#include <msl/lift.h>
#include <msl/math_float.h>

namespace msl::msl_impl {

// fmax and fmin: a number wins over a NaN. (Written out for g++, which vectorises this but not the
// builtins; clang vectorises the builtins, and turns the other form into branches outside of loops;
// GPUs have instructions for them.)
#if defined(__clang__) || defined(__CUDACC_RTC__)
MSL_INLINE constexpr float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
MSL_INLINE constexpr float fmin(float a, float b) { return __builtin_fminf(a, b); }
#else
MSL_INLINE constexpr float fmax(float a, float b) { return a != a ? b : (b > a ? b : a); }
MSL_INLINE constexpr float fmin(float a, float b) { return a != a ? b : (b < a ? b : a); }
#endif

MSL_INLINE float acos(float x) { return __builtin_acosf(x); }
MSL_INLINE float acosh(float x) { return __builtin_acoshf(x); }
MSL_INLINE float asin(float x) { return __builtin_asinf(x); }
MSL_INLINE float asinh(float x) { return __builtin_asinhf(x); }
MSL_INLINE float atan(float x) { return __builtin_atanf(x); }
MSL_INLINE float atan2(float y, float x) { return __builtin_atan2f(y, x); }
MSL_INLINE float atanh(float x) { return __builtin_atanhf(x); }
MSL_INLINE float ceil(float x) { return __builtin_ceilf(x); }
MSL_INLINE constexpr float copysign(float x, float y) { return __builtin_copysignf(x, y); }
MSL_INLINE float cosh(float x) { return __builtin_coshf(x); }
MSL_INLINE constexpr float fabs(float x) { return __builtin_fabsf(x); }
MSL_INLINE float floor(float x) { return __builtin_floorf(x); }
MSL_INLINE float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
MSL_INLINE float fmod(float x, float y) { return __builtin_fmodf(x, y); }
MSL_INLINE float rint(float x) { return __builtin_rintf(x); }
MSL_INLINE float round(float x) { return __builtin_roundf(x); }
MSL_INLINE float sinh(float x) { return __builtin_sinhf(x); }
MSL_INLINE float sqrt(float x) { return __builtin_sqrtf(x); }
MSL_INLINE float tan(float x) { return __builtin_tanf(x); }
MSL_INLINE float trunc(float x) { return __builtin_truncf(x); }
MSL_INLINE float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }

MSL_INLINE constexpr float fdim(float x, float y) { return x <= y ? 0.0f : x - y; }
MSL_INLINE constexpr float divide(float x, float y) { return x / y; }
MSL_INLINE float powr(float x, float y) {
  // pow for x >= 0: NaN where pow has a special case that is not a limit.
  const bool undefined =
      x < 0.0f || (x == 0.0f && y == 0.0f) || (x == __builtin_inff() && y == 0.0f) ||
      (x == 1.0f && (y == __builtin_inff() || y == -__builtin_inff() || y != y)) ||
      (y == 0.0f && x != x);
  return undefined ? __builtin_nanf("") : pow(x, y);
}

// The fraction stays below 1 even where x - floor(x) rounds up to it.
MSL_INLINE float fract(float x, float below_one) {
  const float f = x - floor(x);
  const float bounded = f > below_one ? below_one : f;
  return fabs(x) == __builtin_inff() ? 0.0f : bounded;
}

// Returns 1, -1, or a zero of the same sign; 0 for NaN.
MSL_INLINE constexpr float sign(float x) {
  return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : (x == 0.0f ? x : 0.0f));
}
MSL_INLINE constexpr float clamp(float x, float low, float high) {
  return msl_impl::fmin(msl_impl::fmax(x, low), high);
}
MSL_INLINE constexpr float saturate(float x) { return clamp(x, 0.0f, 1.0f); }
MSL_INLINE constexpr float mix(float x, float y, float a) { return x + (y - x) * a; }
MSL_INLINE constexpr float step(float edge, float x) { return x < edge ? 0.0f : 1.0f; }
MSL_INLINE constexpr float smoothstep(float low, float high, float x) {
  const float t = saturate((x - low) / (high - low));
  return t * t * (3.0f - 2.0f * t);
}

MSL_INLINE constexpr float fmax3(float x, float y, float z) { return fmax(x, fmax(y, z)); }
MSL_INLINE constexpr float fmin3(float x, float y, float z) { return fmin(x, fmin(y, z)); }
// Returns the middle value; for two numbers and a NaN the smaller number.
MSL_INLINE constexpr float fmedian3(float x, float y, float z) {
  if (x != x) return fmin(y, z);
  if (y != y) return fmin(x, z);
  if (z != z) return fmin(x, y);
  return fmax(fmin(x, y), fmin(fmax(x, y), z));
}

MSL_INLINE half next_half(half x, half y) {
  if (x != x || y != y) return half(float(x) + float(y));
  if (x == y) return y;
  const ushort bits = bit_cast<ushort>(x);
  if ((bits & 0x7fffu) == 0) return bit_cast<half>(ushort((bit_cast<ushort>(y) & 0x8000u) | 1u));
  const bool away_from_zero = (x < y) == ((bits & 0x8000u) == 0);
  return bit_cast<half>(ushort(away_from_zero ? bits + 1u : bits - 1u));
}

}  // namespace msl::msl_impl

namespace msl::metal {

#define MSL_FLOAT1(NAME) \
  MSL_INLINE float NAME(float x) { return msl_impl::NAME(x); }
#define MSL_FLOAT2(NAME) \
  MSL_INLINE float NAME(float x, float y) { return msl_impl::NAME(x, y); }
#define MSL_FLOAT3(NAME) \
  MSL_INLINE float NAME(float x, float y, float z) { return msl_impl::NAME(x, y, z); }
#define MSL_HALF1(NAME) \
  MSL_INLINE half NAME(half x) { return half(msl_impl::NAME(float(x))); }
#define MSL_HALF2(NAME) \
  MSL_INLINE half NAME(half x, half y) { return half(msl_impl::NAME(float(x), float(y))); }
#define MSL_HALF3(NAME)                                        \
  MSL_INLINE half NAME(half x, half y, half z) {               \
    return half(msl_impl::NAME(float(x), float(y), float(z))); \
  }

#define MSL_FLOATING1(NAME) MSL_LIFT1(NAME, takes_floating)
#define MSL_FLOATING2(NAME) MSL_LIFT2(NAME, takes_floating)
#define MSL_FLOATING3(NAME) MSL_LIFT3(NAME, takes_floating)

// Functions of one argument, of two, of three.
// clang-format off: of lists it makes stairs that grow with every run
#define MSL_MATH1(MACRO) \
  MACRO(acos) MACRO(acosh) MACRO(asin) MACRO(asinh) MACRO(atan) MACRO(atanh) MACRO(ceil) \
  MACRO(cos) MACRO(cosh) MACRO(cospi) MACRO(exp) MACRO(exp10) MACRO(exp2) MACRO(fabs) \
  MACRO(floor) MACRO(log) MACRO(log10) MACRO(log2) MACRO(rint) MACRO(round) MACRO(rsqrt) \
  MACRO(sin) MACRO(sinh) MACRO(sinpi) MACRO(sqrt) MACRO(tan) MACRO(tanh) MACRO(tanpi) \
  MACRO(trunc) MACRO(sign) MACRO(saturate)
#define MSL_MATH2(MACRO) \
  MACRO(atan2) MACRO(divide) MACRO(fdim) MACRO(fmax) MACRO(fmin) MACRO(fmod) \
  MACRO(pow) MACRO(powr) MACRO(step)
// clang-format on
#define MSL_MATH3(MACRO) MACRO(fmax3) MACRO(fmin3) MACRO(fmedian3) MACRO(mix) MACRO(smoothstep)

MSL_MATH1(MSL_FLOAT1)
MSL_MATH1(MSL_HALF1)
MSL_MATH1(MSL_FLOATING1)
MSL_MATH2(MSL_FLOAT2)
MSL_MATH2(MSL_HALF2)
MSL_MATH2(MSL_FLOATING2)
MSL_FLOAT2(copysign)
// On the bits: a GPU may drop the sign of a NaN when it converts half to float.
MSL_INLINE half copysign(half x, half y) {
  const uint bits = msl_impl::bit_cast<ushort>(x) & 0x7fffu;
  return msl_impl::bit_cast<half>(ushort(bits | (msl_impl::bit_cast<ushort>(y) & 0x8000u)));
}
MSL_FLOATING2(copysign)
MSL_MATH3(MSL_FLOAT3)
MSL_MATH3(MSL_HALF3)
MSL_MATH3(MSL_FLOATING3)
MSL_FLOAT3(fma)
#if defined(__CUDACC_RTC__)
MSL_INLINE half fma(half x, half y, half z) {
  return half::from_bits(msl_impl::fma_of_device(x.bits, y.bits, z.bits));
}
MSL_INLINE vec<half, 2> fma(vec<half, 2> x, vec<half, 2> y, vec<half, 2> z) {
  return msl_impl::bit_cast<vec<half, 2>>(msl_impl::fma_of_device(
      msl_impl::bit_cast<uint>(x), msl_impl::bit_cast<uint>(y), msl_impl::bit_cast<uint>(z)));
}
#else
MSL_HALF3(fma)
#endif
MSL_FLOATING3(fma)

MSL_INLINE constexpr float abs(float x) { return msl_impl::fabs(x); }
MSL_INLINE constexpr half abs(half x) { return half(msl_impl::fabs(float(x))); }

MSL_INLINE float fract(float x) { return msl_impl::fract(x, 0x1.fffffep-1f); }
MSL_INLINE half fract(half x) { return half(msl_impl::fract(float(x), 0x1.ffcp-1f)); }
MSL_FLOATING1(fract)

MSL_INLINE float nextafter(float x, float y) { return msl_impl::nextafter(x, y); }
MSL_INLINE half nextafter(half x, half y) { return msl_impl::next_half(x, y); }
MSL_FLOATING2(nextafter)

// max, min, clamp and their kin for floating point; integer.h has the others and the vector forms.
#define MSL_ORDER(T)                                                                     \
  MSL_INLINE constexpr T max(T x, T y) { return T(msl_impl::fmax(float(x), float(y))); } \
  MSL_INLINE constexpr T min(T x, T y) { return T(msl_impl::fmin(float(x), float(y))); } \
  MSL_INLINE constexpr T max3(T x, T y, T z) {                                           \
    return T(msl_impl::fmax3(float(x), float(y), float(z)));                             \
  }                                                                                      \
  MSL_INLINE constexpr T min3(T x, T y, T z) {                                           \
    return T(msl_impl::fmin3(float(x), float(y), float(z)));                             \
  }                                                                                      \
  MSL_INLINE constexpr T median3(T x, T y, T z) {                                        \
    return T(msl_impl::fmedian3(float(x), float(y), float(z)));                          \
  }                                                                                      \
  MSL_INLINE constexpr T clamp(T x, T low, T high) {                                     \
    return T(msl_impl::clamp(float(x), float(low), float(high)));                        \
  }
MSL_ORDER(float)
MSL_ORDER(half)
#undef MSL_ORDER

// ---- results by reference, integer exponents ----------------------------------------------------

MSL_INLINE float sincos(float x, float& cosine) {
  cosine = msl_impl::cos(x);
  return msl_impl::sin(x);
}
MSL_INLINE half sincos(half x, half& cosine) {
  cosine = half(msl_impl::cos(float(x)));
  return half(msl_impl::sin(float(x)));
}
MSL_INLINE float modf(float x, float& whole) {
  whole = msl_impl::trunc(x);
  return msl_impl::copysign(msl_impl::fabs(x) == __builtin_inff() ? 0.0f : x - whole, x);
}
MSL_INLINE half modf(half x, half& whole) {
  float w;
  const half fraction = half(modf(float(x), w));
  whole = half(w);
  return fraction;
}
MSL_INLINE float frexp(float x, int& exponent) {
  exponent = 0;
  return __builtin_frexpf(x, &exponent);
}
MSL_INLINE half frexp(half x, int& exponent) { return half(frexp(float(x), exponent)); }
MSL_INLINE float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }
MSL_INLINE half ldexp(half x, int exponent) { return half(__builtin_ldexpf(float(x), exponent)); }
MSL_INLINE int ilogb(float x) { return __builtin_ilogbf(x); }
MSL_INLINE int ilogb(half x) { return __builtin_ilogbf(float(x)); }
MSL_FLOATING1(ilogb)

#define MSL_LIFT_BY_REFERENCE(NAME, OUT)                            \
  template <class T, int N, class = msl_impl::takes_floating<T>>    \
  MSL_INLINE vec<T, N> NAME(const vec<T, N>& x, vec<OUT, N>& out) { \
    vec<T, N> result;                                               \
    for (int i = 0; i < N; ++i) result[i] = NAME(x[i], out[i]);     \
    return result;                                                  \
  }
MSL_LIFT_BY_REFERENCE(sincos, T)
MSL_LIFT_BY_REFERENCE(modf, T)
MSL_LIFT_BY_REFERENCE(frexp, int)
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE vec<T, N> ldexp(const vec<T, N>& x, const msl_impl::as_is<vec<int, N>>& exponent) {
  vec<T, N> result;
  for (int i = 0; i < N; ++i) result[i] = ldexp(x[i], exponent[i]);
  return result;
}

// ---- precise and fast
// ------------------------------------------------------------------------------------------- Both
// exist for float only (c10's functors rely on that), and here both are as exact as the plain
// functions.

#define MSL_FLOAT_VECTOR1(NAME)                                \
  MSL_INLINE float NAME(float x) { return msl_impl::NAME(x); } \
  template <int N>                                             \
  MSL_INLINE vec<float, N> NAME(const vec<float, N>& x) {      \
    return metal::NAME(x);                                     \
  }
#define MSL_FLOAT_VECTOR2(NAME)                                                                    \
  MSL_INLINE float NAME(float x, float y) { return msl_impl::NAME(x, y); }                         \
  template <int N>                                                                                 \
  MSL_INLINE vec<float, N> NAME(const vec<float, N>& x, const msl_impl::as_is<vec<float, N>>& y) { \
    return metal::NAME(x, y);                                                                      \
  }
#define MSL_FLOAT_VECTOR3(NAME)                                                                  \
  MSL_INLINE float NAME(float x, float y, float z) { return msl_impl::NAME(x, y, z); }           \
  template <int N>                                                                               \
  MSL_INLINE vec<float, N> NAME(const vec<float, N>& x, const msl_impl::as_is<vec<float, N>>& y, \
                                const msl_impl::as_is<vec<float, N>>& z) {                       \
    return metal::NAME(x, y, z);                                                                 \
  }
#define MSL_SINGLE_PRECISION                                                                      \
  MSL_MATH1(MSL_FLOAT_VECTOR1)                                                                    \
  MSL_MATH2(MSL_FLOAT_VECTOR2)                                                                    \
  MSL_FLOAT_VECTOR2(copysign)                                                                     \
  MSL_MATH3(MSL_FLOAT_VECTOR3) MSL_INLINE constexpr float abs(float x) {                          \
    return msl_impl::fabs(x);                                                                     \
  }                                                                                               \
  MSL_INLINE float fract(float x) { return metal::fract(x); }                                     \
  MSL_INLINE float nextafter(float x, float y) { return metal::nextafter(x, y); }                 \
  MSL_INLINE constexpr float max(float x, float y) { return msl_impl::fmax(x, y); }               \
  MSL_INLINE constexpr float min(float x, float y) { return msl_impl::fmin(x, y); }               \
  MSL_INLINE constexpr float max3(float x, float y, float z) { return msl_impl::fmax3(x, y, z); } \
  MSL_INLINE constexpr float min3(float x, float y, float z) { return msl_impl::fmin3(x, y, z); } \
  MSL_INLINE constexpr float median3(float x, float y, float z) {                                 \
    return msl_impl::fmedian3(x, y, z);                                                           \
  }                                                                                               \
  MSL_INLINE constexpr float clamp(float x, float low, float high) {                              \
    return msl_impl::clamp(x, low, high);                                                         \
  }                                                                                               \
  MSL_INLINE float sincos(float x, float& cosine) { return metal::sincos(x, cosine); }            \
  MSL_INLINE float modf(float x, float& whole) { return metal::modf(x, whole); }                  \
  MSL_INLINE float frexp(float x, int& exponent) { return metal::frexp(x, exponent); }            \
  MSL_INLINE float ldexp(float x, int exponent) { return metal::ldexp(x, exponent); }             \
  MSL_INLINE int ilogb(float x) { return metal::ilogb(x); }                                       \
  template <int N>                                                                                \
  MSL_INLINE vec<float, N> abs(const vec<float, N>& x) {                                          \
    return metal::fabs(x);                                                                        \
  }                                                                                               \
  template <int N>                                                                                \
  MSL_INLINE vec<float, N> fract(const vec<float, N>& x) {                                        \
    return metal::fract(x);                                                                       \
  }                                                                                               \
  template <int N>                                                                                \
  MSL_INLINE vec<float, N> max(const vec<float, N>& x, const msl_impl::as_is<vec<float, N>>& y) { \
    return metal::fmax(x, y);                                                                     \
  }                                                                                               \
  template <int N>                                                                                \
  MSL_INLINE vec<float, N> min(const vec<float, N>& x, const msl_impl::as_is<vec<float, N>>& y) { \
    return metal::fmin(x, y);                                                                     \
  }                                                                                               \
  template <int N>                                                                                \
  MSL_INLINE vec<float, N> clamp(const vec<float, N>& x,                                          \
                                 const msl_impl::as_is<vec<float, N>>& low,                       \
                                 const msl_impl::as_is<vec<float, N>>& high) {                    \
    return metal::fmin(metal::fmax(x, low), high);                                                \
  }                                                                                               \
  template <int N>                                                                                \
  MSL_INLINE vec<float, N> sincos(const vec<float, N>& x, vec<float, N>& cosine) {                \
    return metal::sincos(x, cosine);                                                              \
  }
namespace precise {
MSL_SINGLE_PRECISION
}
namespace fast {
namespace msl_impl = ::msl::msl_impl::fast;
MSL_SINGLE_PRECISION
}  // namespace fast

#undef MSL_SINGLE_PRECISION
#undef MSL_FLOAT_VECTOR1
#undef MSL_FLOAT_VECTOR2
#undef MSL_FLOAT_VECTOR3
#undef MSL_LIFT_BY_REFERENCE
#undef MSL_MATH1
#undef MSL_MATH2
#undef MSL_MATH3
#undef MSL_FLOAT1
#undef MSL_FLOAT2
#undef MSL_FLOAT3
#undef MSL_FLOATING1
#undef MSL_FLOATING2
#undef MSL_FLOATING3
#undef MSL_HALF1
#undef MSL_HALF2
#undef MSL_HALF3

}  // namespace msl::metal
