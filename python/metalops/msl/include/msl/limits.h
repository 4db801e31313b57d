// metal_limits: numeric_limits.
#pragma once

#include <msl/vector.h>

namespace msl::metal {

enum float_round_style {
  round_indeterminate = -1,
  round_toward_zero = 0,
  round_to_nearest = 1,
  round_toward_infinity = 2,
  round_toward_neg_infinity = 3
};
enum float_denorm_style { denorm_indeterminate = -1, denorm_absent = 0, denorm_present = 1 };

// Apple's name for the template that is specialised; code in the wild adds types of its own.
template <class T>
struct _numeric_limits_impl {
  static constexpr bool is_specialized = false;
};
template <class T>
struct numeric_limits : _numeric_limits_impl<remove_cv_t<T>> {};

#define MSL_INTEGER_LIMITS(T, DIGITS, LOWEST, MAX)                      \
  template <>                                                           \
  struct _numeric_limits_impl<T> {                                      \
    static constexpr bool is_specialized = true;                        \
    static constexpr bool is_signed = LOWEST != T(0);                   \
    static constexpr bool is_integer = true;                            \
    static constexpr bool is_exact = true;                              \
    static constexpr bool is_bounded = true;                            \
    static constexpr bool is_modulo = !is_signed;                       \
    static constexpr bool is_iec559 = false;                            \
    static constexpr bool has_infinity = false;                         \
    static constexpr bool has_quiet_NaN = false;                        \
    static constexpr bool has_signaling_NaN = false;                    \
    static constexpr float_denorm_style has_denorm = denorm_absent;     \
    static constexpr bool has_denorm_loss = false;                      \
    static constexpr bool traps = false;                                \
    static constexpr bool tinyness_before = false;                      \
    static constexpr float_round_style round_style = round_toward_zero; \
    static constexpr int digits = DIGITS;                               \
    static constexpr int digits10 = DIGITS * 30103 / 100000;            \
    static constexpr int max_digits10 = 0;                              \
    static constexpr int radix = 2;                                     \
    static constexpr int min_exponent = 0, min_exponent10 = 0;          \
    static constexpr int max_exponent = 0, max_exponent10 = 0;          \
    static constexpr T min() { return LOWEST; }                         \
    static constexpr T lowest() { return LOWEST; }                      \
    static constexpr T max() { return MAX; }                            \
    static constexpr T epsilon() { return T(0); }                       \
    static constexpr T round_error() { return T(0); }                   \
    static constexpr T infinity() { return T(0); }                      \
    static constexpr T quiet_NaN() { return T(0); }                     \
    static constexpr T signaling_NaN() { return T(0); }                 \
    static constexpr T denorm_min() { return T(0); }                    \
  };
MSL_INTEGER_LIMITS(bool, 1, false, true)
MSL_INTEGER_LIMITS(char, 7, char(-128), char(127))
MSL_INTEGER_LIMITS(int8_t, 7, -128, 127)
MSL_INTEGER_LIMITS(uchar, 8, 0, 255)
MSL_INTEGER_LIMITS(short, 15, -32768, 32767)
MSL_INTEGER_LIMITS(ushort, 16, 0, 65535)
MSL_INTEGER_LIMITS(int, 31, (-2147483647 - 1), 2147483647)
MSL_INTEGER_LIMITS(uint, 32, 0u, 4294967295u)
MSL_INTEGER_LIMITS(long, 63, (-9223372036854775807L - 1L), 9223372036854775807L)
MSL_INTEGER_LIMITS(ulong, 64, 0ul, 18446744073709551615ul)
#undef MSL_INTEGER_LIMITS

// MIN, MAX, EPSILON and DENORM are floats that T represents exactly.
#define MSL_FLOAT_LIMITS(T, DIGITS, DIGITS10, MAX_DIGITS10, MIN_EXPONENT, MIN_EXPONENT10, \
                         MAX_EXPONENT, MAX_EXPONENT10, MIN, MAX, EPSILON, DENORM)         \
  template <>                                                                             \
  struct _numeric_limits_impl<T> {                                                        \
    static constexpr bool is_specialized = true;                                          \
    static constexpr bool is_signed = true;                                               \
    static constexpr bool is_integer = false;                                             \
    static constexpr bool is_exact = false;                                               \
    static constexpr bool is_bounded = true;                                              \
    static constexpr bool is_modulo = false;                                              \
    static constexpr bool is_iec559 = true;                                               \
    static constexpr bool has_infinity = true;                                            \
    static constexpr bool has_quiet_NaN = true;                                           \
    static constexpr bool has_signaling_NaN = true;                                       \
    static constexpr float_denorm_style has_denorm = denorm_present;                      \
    static constexpr bool has_denorm_loss = false;                                        \
    static constexpr bool traps = false;                                                  \
    static constexpr bool tinyness_before = false;                                        \
    static constexpr float_round_style round_style = round_to_nearest;                    \
    static constexpr int digits = DIGITS;                                                 \
    static constexpr int digits10 = DIGITS10;                                             \
    static constexpr int max_digits10 = MAX_DIGITS10;                                     \
    static constexpr int radix = 2;                                                       \
    static constexpr int min_exponent = MIN_EXPONENT, min_exponent10 = MIN_EXPONENT10;    \
    static constexpr int max_exponent = MAX_EXPONENT, max_exponent10 = MAX_EXPONENT10;    \
    static constexpr T min() { return T(MIN); }                                           \
    static constexpr T lowest() { return T(-MAX); }                                       \
    static constexpr T max() { return T(MAX); }                                           \
    static constexpr T epsilon() { return T(EPSILON); }                                   \
    static constexpr T round_error() { return T(0.5f); }                                  \
    static constexpr T infinity() { return T(__builtin_inff()); }                         \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }                      \
    static constexpr T signaling_NaN() { return T(__builtin_nanf("")); }                  \
    static constexpr T denorm_min() { return T(DENORM); }                                 \
  };
MSL_FLOAT_LIMITS(float, 24, 6, 9, -125, -37, 128, 38, 0x1p-126f, 0x1.fffffep+127f, 0x1p-23f,
                 0x1p-149f)
MSL_FLOAT_LIMITS(half, 11, 3, 5, -13, -4, 16, 4, 0x1p-14f, 65504.0f, 0x1p-10f, 0x1p-24f)
MSL_FLOAT_LIMITS(bfloat, 8, 2, 4, -125, -37, 128, 38, 0x1p-126f, 0x1.fep+127f, 0x1p-7f, 0x1p-133f)
#undef MSL_FLOAT_LIMITS

// The limits of a vector: those of its elements, in every component.
template <class T, int N>
struct _numeric_limits_impl<vec<T, N>> : _numeric_limits_impl<T> {
#define MSL_LIMIT(NAME) \
  static constexpr vec<T, N> NAME() { return vec<T, N>(_numeric_limits_impl<T>::NAME()); }
  MSL_LIMIT(min)
  MSL_LIMIT(lowest)
  MSL_LIMIT(max)
  MSL_LIMIT(epsilon)
  MSL_LIMIT(round_error)
  MSL_LIMIT(infinity)
  MSL_LIMIT(quiet_NaN)
  MSL_LIMIT(signaling_NaN)
  MSL_LIMIT(denorm_min)
#undef MSL_LIMIT
};

}  // namespace msl::metal
