// half and bfloat, and as_type.
//
// Metal converts bfloat to float (and further) implicitly, and float to bfloat only explicitly;
// both types round after every operation, and mixed with float they give float. bfloat is a struct
// everywhere, because the compilers' own __bf16 converts too freely; half is the compiler's
// _Float16, or else a struct.
#pragma once

#include <msl/traits.h>
#if defined(__CUDACC_RTC__)
#include <msl/cuda/half.h>
#endif

namespace msl {

namespace msl_impl {

template <class To, class From>
MSL_INLINE constexpr To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs two types of the same size");
  return __builtin_bit_cast(To, from);
}

// Rounds to nearest even; every NaN becomes the quiet one with the same sign.
MSL_INLINE constexpr ushort bfloat_bits(float value) {
#if defined(__CUDACC_RTC__)
  if (!__builtin_is_constant_evaluated()) return bfloat_bits_of_device(value);
#endif
  const uint bits = bit_cast<uint>(value);
  const uint rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint nan = (bits >> 16) | 0x40u;
  return ushort((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#if !MSL_NATIVE_HALF
// Without branches, so that loops over arrays of half vectorise, and in as few vector instructions
// as possible.
MSL_INLINE constexpr float half_value(ushort bits) {
#if defined(__CUDACC_RTC__)
  if (!__builtin_is_constant_evaluated()) return half_value_of_device(bits);
#endif
  const uint magnitude_and_sign = (uint(int(short(bits))) << 13) & 0x8fffe000u;
  // half's exponent is 112 less than float's; the product is exact also for denormals.
  const float number = bit_cast<float>(magnitude_and_sign) * 0x1p112f;
  const uint result = bit_cast<uint>(number);
  return bit_cast<float>(__builtin_fabsf(number) >= 65536.0f ? result | 0x7f800000u : result);
}

// Rounds to nearest even. Comparisons are of signed integers, which AVX2 has.
MSL_INLINE constexpr ushort half_bits(float value) {
#if defined(__CUDACC_RTC__)
  if (!__builtin_is_constant_evaluated()) return half_bits_of_device(value);
#endif
  const uint bits = bit_cast<uint>(value);
  const uint magnitude = bits & 0x7fffffffu;
  const int rounded = int(magnitude + ((magnitude >> 13) & 1u) + (0xfffu - 0x38000000u)) >> 13;
  const int infinity_or_nan = int(magnitude) > 0x7f800000 ? 0x7e00 : 0x7c00;
  const int normal = rounded < infinity_or_nan ? rounded : infinity_or_nan;
  // Adding 0.5 to a small number puts the unit of float's last place at 2^-24, the unit of half's
  // denormals.
  const int denormal = int(bit_cast<uint>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u);
  const int result = int(magnitude) < 0x38800000 ? denormal : normal;
  return ushort(((bits >> 16) & 0x8000u) | uint(result));
}
#endif

template <class T, class U>
using if_same = metal::enable_if_t<same<T, U>>;
template <class T>
using if_integer = metal::enable_if_t<is_integer_scalar<T>>;
template <class T>
using if_arithmetic = metal::enable_if_t<is_arithmetic_scalar<T>>;
// Floating-point types, enumerations, and classes that convert to a number.
template <class T>
using if_converts_to_float =
    metal::enable_if_t<!is_integer_scalar<T> && metal::is_convertible_v<const T&, float>>;

}  // namespace msl_impl

#define MSL_SMALL_FLOAT_OPERATOR(Self, op)                                                  \
  friend MSL_INLINE constexpr Self operator op(Self a, Self b) {                            \
    return Self(a.value() op b.value());                                                    \
  }                                                                                         \
  friend MSL_INLINE constexpr float operator op(Self a, float b) { return a.value() op b; } \
  friend MSL_INLINE constexpr float operator op(float a, Self b) { return a op b.value(); } \
  template <class T, class = msl_impl::if_integer<T>>                                       \
  friend MSL_INLINE constexpr Self operator op(Self a, T b) {                               \
    return Self(a.value() op float(b));                                                     \
  }                                                                                         \
  template <class T, class = msl_impl::if_integer<T>>                                       \
  friend MSL_INLINE constexpr Self operator op(T a, Self b) {                               \
    return Self(float(a) op b.value());                                                     \
  }                                                                                         \
  template <class T, class = msl_impl::if_arithmetic<T>>                                    \
  MSL_INLINE constexpr Self& operator op## = (T b) {                                        \
    return *this = Self(value() op float(b));                                               \
  }

#define MSL_SMALL_FLOAT_COMPARISON(Self, op)                                                      \
  friend MSL_INLINE constexpr bool operator op(Self a, Self b) { return a.value() op b.value(); } \
  template <class T, class = msl_impl::if_arithmetic<T>,                                          \
            class = metal::enable_if_t<!msl_impl::same<T, Self>>>                                 \
  friend MSL_INLINE constexpr bool operator op(Self a, T b) {                                     \
    return a.value() op float(b);                                                                 \
  }                                                                                               \
  template <class T, class = msl_impl::if_arithmetic<T>,                                          \
            class = metal::enable_if_t<!msl_impl::same<T, Self>>>                                 \
  friend MSL_INLINE constexpr bool operator op(T a, Self b) {                                     \
    return float(a) op b.value();                                                                 \
  }

#define MSL_SMALL_FLOAT(Self)                                                              \
  /* And so to every other arithmetic type. */                                             \
  MSL_INLINE constexpr operator float() const { return value(); }                          \
  MSL_SMALL_FLOAT_OPERATOR(Self, +)                                                        \
  MSL_SMALL_FLOAT_OPERATOR(Self, -)                                                        \
  MSL_SMALL_FLOAT_OPERATOR(Self, *)                                                        \
  MSL_SMALL_FLOAT_OPERATOR(Self, /)                                                        \
  MSL_SMALL_FLOAT_COMPARISON(Self, <)                                                      \
  MSL_SMALL_FLOAT_COMPARISON(Self, >)                                                      \
  MSL_SMALL_FLOAT_COMPARISON(Self, <=)                                                     \
  MSL_SMALL_FLOAT_COMPARISON(Self, >=)                                                     \
  MSL_SMALL_FLOAT_COMPARISON(Self, ==)                                                     \
  MSL_SMALL_FLOAT_COMPARISON(Self, !=)                                                     \
  MSL_INLINE constexpr Self operator+() const { return *this; }                            \
  MSL_INLINE constexpr Self operator-() const { return from_bits(ushort(bits ^ 0x8000)); } \
  MSL_INLINE constexpr Self& operator++() { return *this = Self(value() + 1.0f); }         \
  MSL_INLINE constexpr Self& operator--() { return *this = Self(value() - 1.0f); }         \
  MSL_INLINE constexpr Self operator++(int) {                                              \
    const Self before = *this;                                                             \
    ++*this;                                                                               \
    return before;                                                                         \
  }                                                                                        \
  MSL_INLINE constexpr Self operator--(int) {                                              \
    const Self before = *this;                                                             \
    --*this;                                                                               \
    return before;                                                                         \
  }                                                                                        \
  static MSL_INLINE constexpr Self from_bits(ushort b) {                                   \
    Self result{};                                                                         \
    result.bits = b;                                                                       \
    return result;                                                                         \
  }

#if !MSL_NATIVE_HALF
struct half {
  ushort bits;

  half() = default;
  template <class T, class = msl_impl::if_arithmetic<T>,
            class = metal::enable_if_t<!msl_impl::same<T, half> && !msl_impl::same<T, bfloat>>>
  MSL_INLINE constexpr half(T v) : bits(msl_impl::half_bits(float(v))) {}
  template <
      class T, class = msl_impl::if_converts_to_float<T>,
      class = metal::enable_if_t<!msl_impl::is_arithmetic_scalar<T> || msl_impl::same<T, bfloat>>,
      int = 0>
  MSL_INLINE explicit constexpr half(const T& v) : bits(msl_impl::half_bits(float(v))) {}

  MSL_INLINE constexpr float value() const { return msl_impl::half_value(bits); }
  MSL_SMALL_FLOAT(half)
};
#endif

struct bfloat {
  ushort bits;

  bfloat() = default;
  template <class T, class = msl_impl::if_integer<T>>
  MSL_INLINE constexpr bfloat(T v) : bits(msl_impl::bfloat_bits(float(v))) {}
  template <class T, class = msl_impl::if_converts_to_float<T>, int = 0>
  MSL_INLINE explicit constexpr bfloat(const T& v) : bits(msl_impl::bfloat_bits(float(v))) {}

  // Assigns objects of classes that convert to a number.
  template <class T, class = msl_impl::if_converts_to_float<T>,
            class = metal::enable_if_t<__is_class(T) && !msl_impl::is_arithmetic_scalar<T>>>
  MSL_INLINE constexpr bfloat& operator=(const T& v) {
    return *this = bfloat(v);
  }

  MSL_INLINE constexpr float value() const { return msl_impl::bit_cast<float>(uint(bits) << 16); }
  MSL_SMALL_FLOAT(bfloat)
  // bfloat with half: both are converted to float.
#define MSL_WITH_HALF(op)                                           \
  friend MSL_INLINE constexpr float operator op(bfloat a, half b) { \
    return a.value() op float(b);                                   \
  }                                                                 \
  friend MSL_INLINE constexpr float operator op(half a, bfloat b) { return float(a) op b.value(); }
  MSL_WITH_HALF(+)
  MSL_WITH_HALF(-)
  MSL_WITH_HALF(*)
  MSL_WITH_HALF(/)
#undef MSL_WITH_HALF
#if !MSL_NATIVE_HALF
#define MSL_WITH_HALF(op)                                          \
  friend MSL_INLINE constexpr bool operator op(bfloat a, half b) { \
    return a.value() op b.value();                                 \
  }                                                                \
  friend MSL_INLINE constexpr bool operator op(half a, bfloat b) { return a.value() op b.value(); }
  MSL_WITH_HALF(<)
  MSL_WITH_HALF(>)
  MSL_WITH_HALF(<=)
  MSL_WITH_HALF(>=)
  MSL_WITH_HALF(==)
  MSL_WITH_HALF(!=)
#undef MSL_WITH_HALF
#endif
};

#undef MSL_SMALL_FLOAT
#undef MSL_SMALL_FLOAT_COMPARISON
#undef MSL_SMALL_FLOAT_OPERATOR

namespace msl_impl {

// True if a scalar of type From converts to To implicitly.
template <class From, class To>
inline constexpr bool converts_silently =
    same<From, To> ||
    (kind<To> == Kind::kBfloat ? is_integer_scalar<From>
                               : (kind<From> != Kind::kBfloat || same<To, float>));

// The type in which arithmetic on T is done: float for half and bfloat, otherwise T.
template <class T>
using computing_t =
    metal::conditional_t<kind<T> == Kind::kHalf || kind<T> == Kind::kBfloat, float, T>;

}  // namespace msl_impl

// Reinterprets the bits of a scalar or vector as another type of the same size.
template <class To, class From>
MSL_INLINE constexpr To as_type(From from) {
  return msl_impl::bit_cast<To>(from);
}

namespace metal {
using msl::as_type;
using msl::bfloat;
using msl::half;
using msl::int16_t;
using msl::int32_t;
using msl::int64_t;
using msl::int8_t;
using msl::intptr_t;
using msl::ptrdiff_t;
using msl::size_t;
using msl::uchar;
using msl::uint;
using msl::uint16_t;
using msl::uint32_t;
using msl::uint64_t;
using msl::uint8_t;
using msl::uintptr_t;
using msl::ulong;
using msl::ushort;
}  // namespace metal

}  // namespace msl
