// logspace. torch's CPU operator computes it in double; here double-float arithmetic takes double's
// place, so that float32 results are correctly rounded in nearly all cases, and integer results are
// exact up to about 2^40: powers of an integer are multiplied out, and values very close to an
// integer are rounded to it, which hides rounding errors of the exponent.
#include <c10/metal/utils.h>
#include <kernels/common/numerics.h>
#include <kernels/creation/range.h>
#include <metalops/register_kernel.h>
#include <metalops/strided.h>
#include <metal_stdlib>
using namespace metal;
using namespace metalops;

// Relative distances from an integer that count as rounding errors.
constant constexpr float kExponentTolerance = 9.09494702e-13f;  // 2^-40
constant constexpr float kValueTolerance = 1.13686838e-13f;     // 2^-43

inline double_float joined(constant SplitDouble& value) { return {value.hi, value.lo}; }

inline double_float from_integer(int64_t value) {
  const float hi = static_cast<float>(value);
  return {hi, static_cast<float>(value - static_cast<int64_t>(hi))};
}

// A scaled number, mantissa * 2^exponent; the mantissa is within [0.7, 1.5), or zero, infinite or
// NaN.
struct scaled_double_float {
  double_float mantissa;
  int exponent;
};

// Returns 2^t by the Taylor series of exp; the leading terms are double-float.
inline scaled_double_float exp2_scaled(double_float t) {
  if (!(abs(t.hi) < 1e6f)) {
    const float limit = t.hi > 0.0f ? INFINITY : (t.hi < 0.0f ? 0.0f : NAN);
    return {{limit, 0.0f}, 0};
  }
  constexpr double_float kLn2 = {0.693147182f, -1.90465421e-09f};
  constexpr double_float kInverseFactorial[8] = {{1.0f, 0.0f},
                                                 {1.0f, 0.0f},
                                                 {0.5f, 0.0f},
                                                 {0.166666672f, -4.96705388e-09f},
                                                 {0.0416666679f, -1.24176347e-09f},
                                                 {0.00833333377f, -4.34617203e-10f},
                                                 {0.00138888892f, -3.36310944e-11f},
                                                 {0.000198412701f, -2.72559687e-12f}};
  const float power = rint(t.hi);
  const double_float y = multiply(add(t, {-power, 0.0f}), kLn2);
  const float rest = polynomial(y.hi, 2.48015876e-05f, 2.75573188e-06f, 2.755732e-07f,
                                2.50521079e-08f, 2.08767559e-09f, 1.60590444e-10f);
  double_float sum = {rest, 0.0f};
  for (int k = 7; k >= 0; --k) {
    sum = add(multiply(sum, y), kInverseFactorial[k]);
  }
  return {sum, static_cast<int>(power)};
}

inline bool is_finite(double_float x) { return isfinite(x.hi); }

inline double_float multiply_or_overflow(double_float a, double_float b) {
  if (is_finite(a) && is_finite(b)) {
    const double_float product = multiply(a, b);
    if (is_finite(product)) {
      return product;
    }
  }
  return {a.hi * b.hi, 0.0f};
}

// Returns start + step i or end - step (steps - 1 - i); part: 0 real, 1 imaginary.
inline double_float exponent_at(int64_t index, constant LogspaceParameters& parameters, int part) {
  if (index < parameters.steps / 2) {
    const double_float way = multiply(joined(parameters.step[part]), from_integer(index));
    return add(joined(parameters.start[part]), way);
  }
  const int64_t remaining = parameters.steps - 1 - index;
  const double_float way = multiply(joined(parameters.step[part]), from_integer(remaining));
  return add(joined(parameters.end[part]), negative(way));
}

// Rounds x to an integer if it is one up to rounding errors; returns true if so.
inline bool settle_on_integer(thread double_float& x) {
  const float hi = rint(x.hi);
  const double_float rest = add(x, {-hi, 0.0f});
  const float lo = rint(rest.hi);
  const float distance = abs((rest.hi - lo) + rest.lo);
  if (!(distance <= kExponentTolerance * max(1.0f, abs(x.hi)))) {
    return false;
  }
  x = ordered_sum(hi, lo);
  return true;
}

inline bool is_odd(float integer) { return 0.5f * integer != rint(0.5f * integer); }
inline bool is_odd(double_float integer) { return is_odd(integer.hi) != is_odd(integer.lo); }

// Returns |base|^exponent. sign: receives base^exponent divided by that: 1, -1 or NaN. Special
// cases are those of IEEE 754 pow.
inline scaled_double_float power(double_float exponent, constant LogspaceParameters& parameters,
                                 thread float& sign) {
  sign = 1.0f;
  const float base = parameters.base;
  if ((exponent.hi == 0.0f && exponent.lo == 0.0f) || base == 1.0f) {
    return {{1.0f, 0.0f}, 0};
  }
  if (as_type<uint>(base) >> 31 != 0) {
    if (settle_on_integer(exponent)) {
      sign = is_odd(exponent) ? -1.0f : 1.0f;
    } else if (base != 0.0f && isfinite(base)) {
      sign = NAN;
    }
  }
  return exp2_scaled(multiply_or_overflow(exponent, joined(parameters.log2_base)));
}

inline float to_float(scaled_double_float value) {
  return ldexp(value.mantissa.hi + value.mantissa.lo, value.exponent);
}

// Returns the integer part. Out of range of 63 bits, and for NaN, it is what x86 conversions give.
inline int64_t to_integer(scaled_double_float value, float sign) {
  constexpr int64_t kOutOfRange = static_cast<int64_t>(1) << 63;
  if (!isfinite(value.mantissa.hi) || isnan(sign) || value.exponent > 62) {
    return kOutOfRange;
  }
  if (value.exponent < -1) {
    return 0;
  }
  // The mantissa in units of 2^-46. If it may have a fractional part, it is slightly enlarged, so
  // that a value that should be an integer is not just below it.
  const float allowance = value.exponent < 42 ? kValueTolerance * value.mantissa.hi : 0.0f;
  const double_float enlarged = add(value.mantissa, {allowance, 0.0f});
  const int64_t units =
      static_cast<int64_t>(ldexp(enlarged.hi, 46)) + static_cast<int64_t>(ldexp(enlarged.lo, 46));
  const int64_t magnitude =
      value.exponent <= 46 ? units >> (46 - value.exponent) : units << (value.exponent - 46);
  return sign < 0.0f ? -magnitude : magnitude;
}

// Computes base^exponent by multiplication, if base is an integer, the exponent a natural number,
// and the result fits into 63 bits. Returns false otherwise.
inline bool integer_power(double_float exponent, constant LogspaceParameters& parameters,
                          thread int64_t& result) {
  const int64_t base = parameters.integer_base;
  if (base == 0 || !settle_on_integer(exponent) || !(exponent.hi >= 0.0f && exponent.hi < 64.0f)) {
    return false;
  }
  const int64_t largest = 0x7fffffffffffffff / abs(base);
  result = 1;
  for (int i = static_cast<int>(exponent.hi); i > 0; --i) {
    if (abs(result) > largest) {
      return false;
    }
    result *= base;
  }
  return true;
}

template <typename T>
inline enable_if_t<c10::metal::is_scalar_floating_point_v<T>, T> logspace_value(
    int64_t index, constant LogspaceParameters& parameters) {
  float sign;
  const scaled_double_float value = power(exponent_at(index, parameters, 0), parameters, sign);
  return static_cast<T>(sign * to_float(value));
}

template <typename T>
inline enable_if_t<c10::metal::is_scalar_integral_v<T>, T> logspace_value(
    int64_t index, constant LogspaceParameters& parameters) {
  const double_float exponent = exponent_at(index, parameters, 0);
  int64_t exact;
  if (integer_power(exponent, parameters, exact)) {
    return static_cast<T>(exact);
  }
  float sign;
  const scaled_double_float value = power(exponent, parameters, sign);
  return static_cast<T>(to_integer(value, sign));
}

// Complex powers: base^(a + bi) = exp((a ln|base| - b theta) + (b ln|base| + a theta) i), where
// theta is 0 or, for a negative base, pi.
template <typename T>
inline enable_if_t<c10::metal::is_complex_v<T>, T> logspace_value(
    int64_t index, constant LogspaceParameters& parameters) {
  constexpr double_float kLn2 = {0.693147182f, -1.90465421e-09f};
  constexpr double_float kPi = {3.14159274f, -8.74227766e-08f};
  constexpr double_float kPiOverLn2 = {4.53236008f, 6.49228937e-08f};
  const double_float a = exponent_at(index, parameters, 0);
  const double_float b = exponent_at(index, parameters, 1);
  double_float magnitude = multiply_or_overflow(a, joined(parameters.log2_base));
  double_float angle = multiply(b, multiply(joined(parameters.log2_base), kLn2));
  if (parameters.base < 0.0f) {
    magnitude = add(magnitude, negative(multiply(b, kPiOverLn2)));
    angle = add(angle, multiply(a, kPi));
  }
  const float radius = to_float(exp2_scaled(magnitude));
  return radius * cos_sin(reduce_angle(angle));
}

template <typename T>
kernel void range_logspace(device T* output [[buffer(0)]],
                           constant LogspaceParameters& parameters [[buffer(1)]],
                           constant StridedLayout<1>& layout [[buffer(2)]],
                           uint2 position [[thread_position_in_grid]],
                           uint2 grid [[threads_per_grid]]) {
  const int64_t index = thread_index(position, grid);
  if (index < layout.count) {
    const auto offsets = offsets_of(index, layout);
    element_at(output, offsets[0]) = logspace_value<T>(index, parameters);
  }
}

#define REGISTER_LOGSPACE(T) REGISTER_KERNEL("range_logspace_" #T, range_logspace, T)

REGISTER_LOGSPACE(float);
REGISTER_LOGSPACE(half);
REGISTER_LOGSPACE(bfloat);
REGISTER_LOGSPACE(float2);
REGISTER_LOGSPACE(long);
REGISTER_LOGSPACE(int);
REGISTER_LOGSPACE(short);
REGISTER_LOGSPACE(char);
REGISTER_LOGSPACE(uchar);
