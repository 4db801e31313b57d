// Conversion of floating-point numbers to integers as GPUs do it: values outside of the integer's
// range become the nearest limit, NaN becomes 0. In C++ both are undefined, and x86-64 gives the
// least integer, or part of it.
#pragma once

#include <msl/half.h>

// A namespace without classes: names of msl_impl would be found for vectors, beside a program's
// own.
namespace msl::msl_impl::conversion {

template <class To, class From>
inline constexpr bool is_float_to_int =
    is_integer_scalar<To> && kind<To> != Kind::kBool &&
    (kind<From> == Kind::kFloat || kind<From> == Kind::kHalf || kind<From> == Kind::kBfloat);

// Converts a number that is in range. (clang's casts saturate, by -fno-strict-float-cast-overflow,
// but without vector instructions.)
template <class To>
MSL_INLINE constexpr To truncated(float x) {
#if defined(__clang__) && !defined(__CUDACC_RTC__) && !defined(__aarch64__)
  if (!__builtin_is_constant_evaluated()) {
    typedef float Float __attribute__((vector_size(sizeof(float))));
    typedef To Integer __attribute__((vector_size(sizeof(To))));
    return __builtin_convertvector(Float{x}, Integer)[0];
  }
#endif
  return static_cast<To>(x);
}

// The comparisons are of the number's bits: compilers would turn comparisons of numbers that were
// halves into comparisons of halves, for which most CPUs have no vector instructions.
template <class To>
MSL_INLINE constexpr To saturated(float x) {
#if defined(MSL_SANITIZE_ADDRESS)
  return static_cast<To>(x);  // reported if it is out of range
#else
  constexpr bool is_signed = To(-1) < To(0);
  constexpr int width = int(sizeof(To)) * 8 - is_signed;
  constexpr To most = To(~ulong(0) >> (64 - width));
  using Whole = metal::conditional_t<(sizeof(To) < 4), int, To>;
#if defined(__CUDACC_RTC__) || defined(__aarch64__)
  // The instructions saturate to 32 and 64 bits. On NVIDIA's GPUs NaN becomes 2^63 in 64 bits.
  if (!__builtin_is_constant_evaluated()) {
    const Whole whole = static_cast<Whole>(x);
    if constexpr (sizeof(To) < 4) {
      constexpr int least = is_signed ? -int(most) - 1 : 0;
      return To(whole < least ? least : whole > int(most) ? int(most) : whole);
    } else if constexpr (sizeof(To) == 8) {
      return x == x ? whole : Whole(0);
    } else {
      return whole;
    }
  }
#endif
  const int bits = bit_cast<int>(x);
  const int magnitude = is_signed ? bits & 0x7fffffff : bits;
  if (magnitude > 0x7f800000) return To(0);  // NaN
  if (magnitude >= (127 + width) << 23) return is_signed ? To(To(bits >> 31) ^ most) : most;
  if (!is_signed && bits < 0) return To(0);
  return To(truncated<Whole>(x));
#endif
}

// static_cast<To>(x) of a scalar.
template <class To, class From>
MSL_INLINE constexpr To converted(const From& x) {
  if constexpr (is_float_to_int<To, metal::remove_cv_t<From>>) {
    return saturated<To>(float(x));
  } else {
    return static_cast<To>(x);
  }
}

}  // namespace msl::msl_impl::conversion
