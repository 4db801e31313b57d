// Tools for float kernels that must be accurate to the last digits although Metal has no double:
// double-float arithmetic, polynomials, and a logarithm that handles denormal arguments.
//
// The algorithms on sums of two floats are those of T. J. Dekker (Numerische Mathematik 18, 1971)
// and D. E. Knuth (The Art of Computer Programming, volume 2, 4.2.2). They need IEEE rounding, so
// they hold in Metal's safe math mode only, which is how kernels are compiled unless
// PYTORCH_MPS_FAST_MATH=1.
#pragma once
#include <metal_stdlib>

namespace metalops {

// hi + lo, with |lo| at most half a unit in the last place of hi: about 48 bits.
struct double_float {
  float hi;
  float lo;
};

// Returns the exact sum a + b; needs |a| >= |b| or a == 0 (Dekker's Fast2Sum).
inline double_float ordered_sum(float a, float b) {
  const float sum = a + b;
  return {sum, b - (sum - a)};
}

// Returns the exact sum a + b (Knuth's TwoSum).
inline double_float exact_sum(float a, float b) {
  const float sum = a + b;
  const float b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

// Returns the exact product a b, if it neither overflows nor comes near the denormals.
inline double_float exact_product(float a, float b) {
  const float product = a * b;
  return {product, ::metal::fma(a, b, -product)};
}

inline double_float add(double_float a, double_float b) {
  const double_float high = exact_sum(a.hi, b.hi);
  const double_float low = exact_sum(a.lo, b.lo);
  const double_float sum = ordered_sum(high.hi, high.lo + low.hi);
  return ordered_sum(sum.hi, sum.lo + low.lo);
}

inline double_float multiply(double_float a, double_float b) {
  const double_float product = exact_product(a.hi, b.hi);
  return ordered_sum(product.hi, ::metal::fma(a.hi, b.lo, ::metal::fma(a.lo, b.hi, product.lo)));
}

inline double_float negative(double_float a) { return {-a.hi, -a.lo}; }

// Returns x * sqrt(x); x is positive and finite.
inline double_float three_halves_power(float x) {
  const float root = ::metal::precise::sqrt(x);
  // One Newton step: root + rest is the square root to 48 bits.
  const float rest = ::metal::fma(-root, root, x) / (2.0f * root);
  return multiply({x, 0.0f}, ordered_sum(root, rest));
}

// Returns angle - 2 pi n, with the n that brings it into about [-pi, pi]. The absolute error is
// that of the angle (2^-48 of it) or 2^-25, whichever is larger.
inline double_float reduce_angle(double_float angle) {
  // 2 pi in three pieces: 72 bits.
  constexpr float kTwoPi[3] = {6.28318548e+00f, -1.74845553e-07f, -6.86049804e-15f};
  constexpr float kTurns = 0.159154943f;  // 1 / (2 pi)
  constexpr float kPi = 3.14159274f;
  // Above 2^24 turns the first count of turns is rounded, and the remainder may be many turns, so a
  // second pass follows.
  for (int i = 0; i < 2 && ::metal::abs(angle.hi) > kPi; ++i) {
    const float turns = ::metal::rint(angle.hi * kTurns);
    for (int piece = 0; piece < 3; ++piece) {
      angle = add(angle, exact_product(-turns, kTwoPi[piece]));
    }
  }
  return angle;
}

// Returns cos and sin of a reduced angle.
inline ::metal::float2 cos_sin(double_float angle) {
  const float c = ::metal::precise::cos(angle.hi);
  const float s = ::metal::precise::sin(angle.hi);
  return ::metal::float2(::metal::fma(-angle.lo, s, c), ::metal::fma(angle.lo, c, s));
}

// Evaluates c0 + c1 x + c2 x^2 + ... by Horner's rule.
inline float polynomial(float, float c0) { return c0; }

template <typename... Rest>
inline float polynomial(float x, float c0, Rest... rest) {
  return ::metal::fma(polynomial(x, rest...), x, c0);
}

// Returns log(x), also if the GPU flushes denormal numbers to zero.
inline float log_with_denormals(float x) {
  const uint bits = as_type<uint>(x);
  if (bits - 1u < 0x007fffffu) {  // positive and denormal: bits * 2^-149
    return ::metal::precise::log(static_cast<float>(bits)) - 103.278931f;
  }
  return ::metal::precise::log(x);
}

}  // namespace metalops
