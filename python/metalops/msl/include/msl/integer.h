// metal_integer: functions of integers; and the vector forms of functions that integers share with
// floating point.
//
// Sums and products that may leave the range wrap around, as on the GPU; they are computed
// unsigned, because signed overflow is undefined in C++.
#pragma once

#include <msl/math.h>

namespace msl::msl_impl {

template <class T>
inline constexpr uint kBits = sizeof(T) * 8;

template <class T>
MSL_INLINE constexpr T integer_limit(bool highest) {
  using U = metal::make_unsigned_t<T>;
  constexpr T max = metal::is_signed_v<T> ? T(U(~U(0)) >> 1) : T(~U(0));
  return highest ? max : T(U(max) + 1u);
}

// A type that holds any x * y + z.
template <class T>
using wide_t =
    metal::conditional_t<(sizeof(T) < 8), metal::conditional_t<metal::is_signed_v<T>, long, ulong>,
                         metal::conditional_t<metal::is_signed_v<T>, __int128, unsigned __int128>>;

}  // namespace msl::msl_impl

namespace msl::metal {

#define MSL_INTEGER(T)                                                                           \
  MSL_INLINE constexpr T max(T x, T y) { return x < y ? y : x; }                                 \
  MSL_INLINE constexpr T min(T x, T y) { return y < x ? y : x; }                                 \
  MSL_INLINE constexpr T max3(T x, T y, T z) { return max(x, max(y, z)); }                       \
  MSL_INLINE constexpr T min3(T x, T y, T z) { return min(x, min(y, z)); }                       \
  MSL_INLINE constexpr T median3(T x, T y, T z) { return max(min(x, y), min(max(x, y), z)); }    \
  MSL_INLINE constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }            \
  MSL_INLINE constexpr T abs(T x) {                                                              \
    return x < T(0) ? T(make_unsigned_t<T>(0) - make_unsigned_t<T>(x)) : x;                      \
  }                                                                                              \
  MSL_INLINE constexpr make_unsigned_t<T> absdiff(T x, T y) {                                    \
    using U = make_unsigned_t<T>;                                                                \
    return x > y ? U(U(x) - U(y)) : U(U(y) - U(x));                                              \
  }                                                                                              \
  MSL_INLINE constexpr T addsat(T x, T y) {                                                      \
    T sum = 0;                                                                                   \
    return __builtin_add_overflow(x, y, &sum) ? msl_impl::integer_limit<T>(y > T(0)) : sum;      \
  }                                                                                              \
  MSL_INLINE constexpr T subsat(T x, T y) {                                                      \
    T difference = 0;                                                                            \
    return __builtin_sub_overflow(x, y, &difference) ? msl_impl::integer_limit<T>(x > y)         \
                                                     : difference;                               \
  }                                                                                              \
  MSL_INLINE constexpr T hadd(T x, T y) { return T((x >> 1) + (y >> 1) + (x & y & 1)); }         \
  MSL_INLINE constexpr T rhadd(T x, T y) { return T((x >> 1) + (y >> 1) + ((x | y) & 1)); }      \
  MSL_INLINE constexpr T mulhi(T x, T y) {                                                       \
    return T((msl_impl::wide_t<T>(x) * msl_impl::wide_t<T>(y)) >> msl_impl::kBits<T>);           \
  }                                                                                              \
  MSL_INLINE constexpr T madhi(T x, T y, T z) {                                                  \
    using U = make_unsigned_t<T>;                                                                \
    return T(U(U(mulhi(x, y)) + U(z)));                                                          \
  }                                                                                              \
  MSL_INLINE constexpr T madsat(T x, T y, T z) {                                                 \
    using W = msl_impl::wide_t<T>;                                                               \
    const W value = W(x) * W(y) + W(z);                                                          \
    if (value > W(msl_impl::integer_limit<T>(true))) return msl_impl::integer_limit<T>(true);    \
    return value < W(msl_impl::integer_limit<T>(false)) ? msl_impl::integer_limit<T>(false)      \
                                                        : T(value);                              \
  }                                                                                              \
  MSL_INLINE constexpr T clz(T x) {                                                              \
    const ulong bits = make_unsigned_t<T>(x);                                                    \
    return T(bits == 0 ? msl_impl::kBits<T>                                                      \
                       : uint(__builtin_clzl(bits)) - (64u - msl_impl::kBits<T>));               \
  }                                                                                              \
  MSL_INLINE constexpr T ctz(T x) {                                                              \
    const ulong bits = make_unsigned_t<T>(x);                                                    \
    return T(bits == 0 ? msl_impl::kBits<T> : uint(__builtin_ctzl(bits)));                       \
  }                                                                                              \
  MSL_INLINE constexpr T popcount(T x) { return T(__builtin_popcountl(make_unsigned_t<T>(x))); } \
  MSL_INLINE constexpr T reverse_bits(T x) {                                                     \
    ulong b = make_unsigned_t<T>(x);                                                             \
    b = ((b >> 1) & 0x5555555555555555ul) | ((b & 0x5555555555555555ul) << 1);                   \
    b = ((b >> 2) & 0x3333333333333333ul) | ((b & 0x3333333333333333ul) << 2);                   \
    b = ((b >> 4) & 0x0f0f0f0f0f0f0f0ful) | ((b & 0x0f0f0f0f0f0f0f0ful) << 4);                   \
    return T(__builtin_bswap64(b) >> (64u - msl_impl::kBits<T>));                                \
  }                                                                                              \
  MSL_INLINE constexpr T rotate(T x, T i) {                                                      \
    using U = make_unsigned_t<T>;                                                                \
    const uint left = uint(i) & (msl_impl::kBits<T> - 1);                                        \
    const uint right = (msl_impl::kBits<T> - left) & (msl_impl::kBits<T> - 1);                   \
    return T(U(U(U(x) << left) | U(U(x) >> right)));                                             \
  }                                                                                              \
  MSL_INLINE constexpr T extract_bits(T x, uint offset, uint bits) {                             \
    using U = make_unsigned_t<T>;                                                                \
    if (bits == 0) return T(0);                                                                  \
    /* To the top of the word, and back with the sign. */                                        \
    return T(T(U(U(x) << (msl_impl::kBits<T> - offset - bits))) >> (msl_impl::kBits<T> - bits)); \
  }                                                                                              \
  MSL_INLINE constexpr T insert_bits(T base, T insert, uint offset, uint bits) {                 \
    using U = make_unsigned_t<T>;                                                                \
    const U ones = bits >= msl_impl::kBits<T> ? U(~U(0)) : U((U(1) << bits) - 1);                \
    const U mask = U(ones << offset);                                                            \
    return T(U((U(base) & U(~mask)) | (U(U(insert) << offset) & mask)));                         \
  }
MSL_INTEGER(char)
MSL_INTEGER(int8_t)
MSL_INTEGER(uchar)
MSL_INTEGER(short)
MSL_INTEGER(ushort)
MSL_INTEGER(int)
MSL_INTEGER(uint)
MSL_INTEGER(long)
MSL_INTEGER(ulong)
#undef MSL_INTEGER

// Products of 24-bit numbers.
MSL_INLINE constexpr int mul24(int x, int y) { return int(uint(x) * uint(y)); }
MSL_INLINE constexpr uint mul24(uint x, uint y) { return x * y; }
MSL_INLINE constexpr int mad24(int x, int y, int z) { return int(uint(x) * uint(y) + uint(z)); }
MSL_INLINE constexpr uint mad24(uint x, uint y, uint z) { return x * y + z; }

MSL_LIFT1(abs, takes_number)
MSL_LIFT1(clz, takes_integer)
MSL_LIFT1(ctz, takes_integer)
MSL_LIFT1(popcount, takes_integer)
MSL_LIFT1(reverse_bits, takes_integer)
MSL_LIFT2(max, takes_number)
MSL_LIFT2(min, takes_number)
MSL_LIFT2(absdiff, takes_integer)
MSL_LIFT2(addsat, takes_integer)
MSL_LIFT2(subsat, takes_integer)
MSL_LIFT2(hadd, takes_integer)
MSL_LIFT2(rhadd, takes_integer)
MSL_LIFT2(mulhi, takes_integer)
MSL_LIFT2(mul24, takes_word)
MSL_LIFT2(rotate, takes_integer)
MSL_LIFT3(max3, takes_number)
MSL_LIFT3(min3, takes_number)
MSL_LIFT3(median3, takes_number)
MSL_LIFT3(clamp, takes_number)
MSL_LIFT3(madhi, takes_integer)
MSL_LIFT3(madsat, takes_integer)
MSL_LIFT3(mad24, takes_word)
template <class T, int N, class = msl_impl::takes_integer<T>>
MSL_INLINE constexpr vec<T, N> extract_bits(const vec<T, N>& x, uint offset, uint bits) {
  vec<T, N> result(T(0));
  for (int i = 0; i < N; ++i) result[i] = extract_bits(x[i], offset, bits);
  return result;
}
template <class T, int N, class = msl_impl::takes_integer<T>>
MSL_INLINE constexpr vec<T, N> insert_bits(const vec<T, N>& base, const vec<T, N>& insert,
                                           uint offset, uint bits) {
  vec<T, N> result(T(0));
  for (int i = 0; i < N; ++i) result[i] = insert_bits(base[i], insert[i], offset, bits);
  return result;
}

}  // namespace msl::metal
