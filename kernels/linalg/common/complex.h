// Arithmetic that is the same for T = float and for T = float2, a complex number. The operators +
// and -, and * by a float, work on both as they are.
#pragma once
#include <c10/metal/utils.h>
#include <metal_stdlib>

namespace metalops {

using c10::metal::is_complex_v;

template <typename T>
inline T from_real(float a) {
  return c10::metal::cast_to<T>(a);
}

inline float real_part(float a) { return a; }
inline float real_part(::metal::float2 a) { return a.x; }

inline float imaginary_part(float) { return 0.0f; }
inline float imaginary_part(::metal::float2 a) { return a.y; }

METAL_FUNC float conjugate(float a) { return a; }
METAL_FUNC ::metal::float2 conjugate(::metal::float2 a) { return ::metal::float2(a.x, -a.y); }

METAL_FUNC float multiply(float a, float b) { return a * b; }
METAL_FUNC ::metal::float2 multiply(::metal::float2 a, ::metal::float2 b) {
  // This is a sum since g++ fuses a difference whatever it is told.
  return a.x * b + a.y * ::metal::float2(-b.y, b.x);
}

// Returns c + a b.
METAL_FUNC float multiply_add(float c, float a, float b) { return ::metal::fma(a, b, c); }
METAL_FUNC ::metal::float2 multiply_add(::metal::float2 c, ::metal::float2 a, ::metal::float2 b) {
  return ::metal::float2(::metal::fma(a.x, b.x, ::metal::fma(-a.y, b.y, c.x)),
                         ::metal::fma(a.x, b.y, ::metal::fma(a.y, b.x, c.y)));
}

inline float squared_magnitude(float a) { return a * a; }
inline float squared_magnitude(::metal::float2 a) { return ::metal::dot(a, a); }

// Returns the larger magnitude of the real and the imaginary part: it neither overflows nor
// underflows, and is at least 0.7 of |a|. It is NaN only if both parts are.
inline float largest_part(float a) { return ::metal::abs(a); }
inline float largest_part(::metal::float2 a) {
  return ::metal::max(::metal::abs(a.x), ::metal::abs(a.y));
}

// Returns e such that |a| 2^-e is in [1, 2), or 0 if a is zero or not finite.
inline int binary_exponent(float a) {
  return a != 0.0f && ::metal::isfinite(a) ? ::metal::ilogb(a) : 0;
}

// Returns 2^e for e from -126 to 127, without ldexp(), which is slow in a CPU's library.
inline float power_of_two(int e) { return as_type<float>((e + 127) << 23); }

// Returns a power of two to multiply elements of at most that magnitude by, so that their squares
// do not overflow, and underflow only if they are negligible against the largest one.
inline float safe_scale(float largest) {
  return power_of_two(::metal::clamp(-binary_exponent(largest), -126, 126));
}

inline float magnitude(float a) { return ::metal::abs(a); }
inline float magnitude(::metal::float2 a) {
  const float scale = safe_scale(largest_part(a));
  return ::metal::precise::sqrt(squared_magnitude(a * scale)) / scale;
}

// Returns a / b, without overflow or underflow unless the quotient itself has it.
// (row_packs.h and planar.h divide by Smith's method, which is faster for many elements but loses
// some quotients near the ends of the range.)
inline float divide(float a, float b) { return a / b; }
inline ::metal::float2 divide(::metal::float2 a, ::metal::float2 b) {
  if (b.y == 0.0f) {
    return a / b.x;
  }
  const int of_a = ::metal::clamp(binary_exponent(largest_part(a)), -126, 126);
  const int of_b = ::metal::clamp(binary_exponent(largest_part(b)), -126, 126);
  const ::metal::float2 x = a * power_of_two(-of_a);
  const ::metal::float2 y = b * power_of_two(-of_b);
  const ::metal::float2 quotient = multiply(x, conjugate(y)) / ::metal::dot(y, y);
  const int half_of_it = (of_a - of_b) / 2;
  return quotient * power_of_two(half_of_it) * power_of_two(of_a - of_b - half_of_it);
}

}  // namespace metalops
