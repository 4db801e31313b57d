// Mathematical functions of one float that this library computes itself.
//
// They are straight-line code, so that a loop over the grid vectorises with any compiler on any
// CPU; a call of libm would prevent that. Each is within 2 ulp of the true value over all floats
// (tanpi: 5; tests/exec/test_math.py), with libm's values for zeros, infinities and NaN, and
// gradual underflow. No step depends on fused multiply-add or forbids it. Other functions use libm;
// sin, cos and pow, whose exact argument reduction or extra precision needs branches, use the
// vector version of libm where there is one.
#pragma once

#include <msl/half.h>

#if defined(__CUDACC_RTC__)
#include <msl/cuda/math_float.h>
#else
namespace msl::msl_impl {

#if MSL_SIMD_DECLARATIONS
// g++ may replace calls in a loop by calls of libmvec (_ZGVdN8v_sinf and so on). The asm names keep
// libc's own names hidden.
extern "C" {
#define MSL_LIBMVEC __attribute__((simd("notinbranch"), const, nothrow))
MSL_LIBMVEC float msl_libm_sinf(float) __asm__("sinf");
MSL_LIBMVEC float msl_libm_cosf(float) __asm__("cosf");
MSL_LIBMVEC float msl_libm_powf(float, float) __asm__("powf");
#undef MSL_LIBMVEC
}
MSL_INLINE float sin(float x) { return msl_libm_sinf(x); }
MSL_INLINE float cos(float x) { return msl_libm_cosf(x); }
MSL_INLINE float pow(float x, float y) { return msl_libm_powf(x, y); }
#else
MSL_INLINE float sin(float x) { return __builtin_sinf(x); }
MSL_INLINE float cos(float x) { return __builtin_cosf(x); }
MSL_INLINE float pow(float x, float y) { return __builtin_powf(x, y); }
#endif

// a * b + c, in one step where the CPU has it.
MSL_INLINE float multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// The nearest integer of |x * factor| < 2^22, as a float and as an int: adding 1.5 * 2^23 leaves no
// room for a fraction.
struct Rounded {
  float value;
  int integer;
};
MSL_INLINE Rounded round_small(float x, float factor = 1.0f) {
  const float shifted = multiply_add(x, factor, 12582912.0f);
  return {shifted - 12582912.0f, int(bit_cast<uint>(shifted) - 0x4b400000u)};
}

// x * 2^n for |n| <= 252, rounding once: the first factor never leaves the normal range when x is
// near 1.
MSL_INLINE float scale(float x, int n) {
  const int first = n >> 1;
  const int second = n - first;
  return x * bit_cast<float>((first + 127) << 23) * bit_cast<float>((second + 127) << 23);
}

// (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2.
MSL_INLINE float exp_tail(float r) {
  float p = 0x1.a05p-13f;
  p = multiply_add(p, r, 0x1.6d4b6cp-10f);
  p = multiply_add(p, r, 0x1.1110f2p-7f);
  p = multiply_add(p, r, 0x1.55545ep-5f);
  p = multiply_add(p, r, 0x1.555556p-3f);
  p = multiply_add(p, r, 0.5f);
  return p;
}

constexpr float kLn2High =
    0x1.62e4p-1f;  // 13 significant bits: its product with any exponent is exact
constexpr float kLn2Low = 0x1.7f7d1cp-20f;
constexpr float kLog2E = 0x1.715476p+0f;

MSL_INLINE float exp(float x) {
  // Beyond these bounds the result is infinity or zero; NaN fails both comparisons and is kept.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const Rounded n = round_small(x, kLog2E);
  const float r = multiply_add(n.value, -kLn2Low, multiply_add(n.value, -kLn2High, x));
  return scale(1.0f + multiply_add(r * r, exp_tail(r), r), n.integer);
}

MSL_INLINE float exp2(float x) {
  x = x > 129.0f ? 129.0f : x;
  x = x < -151.0f ? -151.0f : x;
  const Rounded n = round_small(x);
  const float f = x - n.value;
  float p = 0.1535920892e-3f;
  p = multiply_add(p, f, 0.1339262701e-2f);
  p = multiply_add(p, f, 0.9618384764e-2f);
  p = multiply_add(p, f, 0.5550347269e-1f);
  p = multiply_add(p, f, 0.2402264476e+0f);
  p = multiply_add(p, f, 0.6931471825e+0f);
  return scale(multiply_add(f, p, 1.0f), n.integer);
}

MSL_INLINE float exp10(float x) {
  constexpr float log2_10 = 0x1.a934f0p+1f;
  constexpr float log10_2_high = 0x1.34p-2f;  // 9 significant bits
  constexpr float log10_2_low = 0x1.04d426p-12f;
  constexpr float ln10 = 0x1.26bb1cp+1f;
  constexpr float ln10_low = -0x1.12aabap-25f;
  x = x > 39.0f ? 39.0f : x;
  x = x < -46.0f ? -46.0f : x;
  const Rounded n = round_small(x, log2_10);
  const float f = multiply_add(n.value, -log10_2_low, multiply_add(n.value, -log10_2_high, x));
  const float r = multiply_add(f, ln10, f * ln10_low);
  return scale(1.0f + multiply_add(r * r, exp_tail(r), r), n.integer);
}

// x = 2^exponent * (1 + fraction) with 1 + fraction in [sqrt(1/2), sqrt(2)); x positive and finite.
struct Split {
  float exponent;
  float fraction;
};
MSL_INLINE Split split(float x) {
  const bool denormal = x < 0x1p-126f;
  const uint bits = bit_cast<uint>(denormal ? x * 0x1p23f : x) - 0x3f3504f3u;
  const float exponent = float(int(bits) >> 23) - (denormal ? 23.0f : 0.0f);
  return {exponent, bit_cast<float>((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f};
}

// (log(1 + f) - f + f^2 / 2) / f^3.
MSL_INLINE float log_tail(float f) {
  float p = 7.0376836292e-2f;
  p = multiply_add(p, f, -1.1514610310e-1f);
  p = multiply_add(p, f, 1.1676998740e-1f);
  p = multiply_add(p, f, -1.2420140846e-1f);
  p = multiply_add(p, f, 1.4249322787e-1f);
  p = multiply_add(p, f, -1.6668057665e-1f);
  p = multiply_add(p, f, 2.0000714765e-1f);
  p = multiply_add(p, f, -2.4999993993e-1f);
  p = multiply_add(p, f, 3.3333331174e-1f);
  return p;
}

// Returns a logarithm's value where x is not positive and finite; otherwise `result`.
MSL_INLINE float log_special(float x, float result) {
  result = x == __builtin_inff() ? x : result;
  result = x == 0.0f ? -__builtin_inff() : result;
  return x < 0.0f || x != x ? __builtin_nanf("") : result;
}

MSL_INLINE float log(float x) {
  const Split s = split(x);
  const float f = s.fraction;
  const float square = f * f;
  float y = f * square * log_tail(f) + s.exponent * kLn2Low;
  y = y - 0.5f * square;
  return log_special(x, s.exponent * kLn2High + (f + y));
}

MSL_INLINE float log2(float x) {
  constexpr float log2e_minus_1 = 0x1.c551d9p-2f;
  const Split s = split(x);
  const float f = s.fraction;
  const float square = f * f;
  const float y = f * square * log_tail(f) - 0.5f * square;
  // log2(e) = 1 + log2e_minus_1: the two large terms are added last.
  float z = y * log2e_minus_1;
  z = z + f * log2e_minus_1;
  z = z + y;
  z = z + f;
  return log_special(x, s.exponent + z);
}

MSL_INLINE float log10(float x) {
  constexpr float log10e_high = 4.3359375e-1f;  // 7 significant bits
  constexpr float log10e_low = 7.00731903251827651e-4f;
  constexpr float log10_2_high = 3.0078125e-1f;
  constexpr float log10_2_low = 2.48745663981195213739e-4f;
  const Split s = split(x);
  const float f = s.fraction;
  const float square = f * f;
  const float y = f * square * log_tail(f) - 0.5f * square;
  float z = (f + y) * log10e_low;
  z = z + y * log10e_high;
  z = z + f * log10e_high;
  z = z + s.exponent * log10_2_low;
  return log_special(x, z + s.exponent * log10_2_high);
}

MSL_INLINE float tanh(float x) {
  const float magnitude = __builtin_fabsf(x);
  // Near zero an odd polynomial; elsewhere 1 - 2 / (e^(2|x|) + 1), where the subtraction loses at
  // most a bit.
  const float square = x * x;
  float p = -5.70498872745e-3f;
  p = multiply_add(p, square, 2.06390887954e-2f);
  p = multiply_add(p, square, -5.37397155531e-2f);
  p = multiply_add(p, square, 1.33314422036e-1f);
  p = multiply_add(p, square, -3.33332819422e-1f);
  const float near = multiply_add(magnitude * square, p, magnitude);
  const float far = 1.0f - 2.0f / (exp(2.0f * magnitude) + 1.0f);
  return __builtin_copysignf(magnitude < 0.625f ? near : far, x);
}

MSL_INLINE float rsqrt(float x) { return 1.0f / __builtin_sqrtf(x); }

// ---- trigonometric functions of pi * x ----------------------------------------------------------

// sin and cos for |x| <= pi / 4.
MSL_INLINE float sin_quadrant(float x) {
  const float square = x * x;
  float p = -1.9515295891e-4f;
  p = multiply_add(p, square, 8.3321608736e-3f);
  p = multiply_add(p, square, -1.6666654611e-1f);
  return multiply_add(x * square, p, x);
}
MSL_INLINE float cos_quadrant(float x) {
  const float square = x * x;
  float p = 2.443315711809948e-5f;
  p = multiply_add(p, square, -1.388731625493765e-3f);
  p = multiply_add(p, square, 4.166664568298827e-2f);
  return (1.0f - 0.5f * square) + square * square * p;
}

// x in units of pi: the nearest multiple of 1/2, modulo 4, and the remainder times pi. Exact except
// for the last product. Floats from 2^24 on are even integers.
struct Turn {
  int quarter;
  float remainder;
};
MSL_INLINE Turn half_turns(float x) {
  constexpr float pi_high = 0x1.921fb6p+1f;
  constexpr float pi_low = -0x1.777a5cp-24f;
  const float wrapped = x - 2.0f * __builtin_rintf(0.5f * x);  // in [-1, 1]; NaN for infinities
  const Rounded n = round_small(wrapped, 2.0f);
  const float f = wrapped - 0.5f * n.value;
  return {n.integer, f * pi_high + f * pi_low};
}

MSL_INLINE float sinpi(float x) {
  const Turn t = half_turns(x);
  const float s = t.quarter & 1 ? cos_quadrant(t.remainder) : sin_quadrant(t.remainder);
  const float signed_s = t.quarter & 2 ? -s : s;
  return signed_s == 0.0f ? __builtin_copysignf(0.0f, x) : signed_s;
}
MSL_INLINE float cospi(float x) {
  const Turn t = half_turns(x);
  const float c = t.quarter & 1 ? sin_quadrant(t.remainder) : cos_quadrant(t.remainder);
  return ((t.quarter + 1) & 2 ? -c : c) + 0.0f;  // zeros are positive
}
MSL_INLINE float tanpi(float x) {
  const Turn t = half_turns(x);
  const float s = sin_quadrant(t.remainder);
  const float c = cos_quadrant(t.remainder);
  const float even = s == 0.0f ? __builtin_copysignf(0.0f, x) : s / c;
  // Infinite half way between integers: positive before an odd one, as in IEEE 754.
  const float infinity = t.quarter > 0 ? __builtin_inff() : -__builtin_inff();
  const float odd = s == 0.0f ? infinity : -c / s;
  return t.quarter & 1 ? odd : even;
}

// metal::fast has the same functions.
namespace fast {
using namespace msl_impl;
}

}  // namespace msl::msl_impl
#endif
