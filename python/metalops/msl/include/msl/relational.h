// metal_relational: classification of floating-point numbers, reductions of bool vectors, select.
#pragma once

#include <msl/lift.h>

namespace msl::msl_impl {

// On the bits, so that no compiler option about NaN changes the results.
MSL_INLINE constexpr uint magnitude_bits(float x) { return bit_cast<uint>(x) & 0x7fffffffu; }
MSL_INLINE constexpr bool isfinite(float x) { return magnitude_bits(x) < 0x7f800000u; }
MSL_INLINE constexpr bool isinf(float x) { return magnitude_bits(x) == 0x7f800000u; }
MSL_INLINE constexpr bool isnan(float x) { return magnitude_bits(x) > 0x7f800000u; }
MSL_INLINE constexpr bool signbit(float x) { return (bit_cast<uint>(x) >> 31) != 0; }
MSL_INLINE constexpr bool isunordered(float x, float y) { return isnan(x) || isnan(y); }
MSL_INLINE constexpr bool isordered(float x, float y) { return !isunordered(x, y); }

}  // namespace msl::msl_impl

namespace msl::metal {

#define MSL_TEST1(NAME)                                                       \
  MSL_INLINE constexpr bool NAME(float x) { return msl_impl::NAME(x); }       \
  MSL_INLINE constexpr bool NAME(half x) { return msl_impl::NAME(float(x)); } \
  MSL_LIFT1(NAME, takes_floating)
#define MSL_TEST2(NAME)                                                                         \
  MSL_INLINE constexpr bool NAME(float x, float y) { return msl_impl::NAME(x, y); }             \
  MSL_INLINE constexpr bool NAME(half x, half y) { return msl_impl::NAME(float(x), float(y)); } \
  MSL_LIFT2(NAME, takes_floating)
MSL_TEST1(isfinite)
MSL_TEST1(isinf)
MSL_TEST1(isnan)
MSL_TEST2(isunordered)
MSL_TEST2(isordered)
#undef MSL_TEST1
#undef MSL_TEST2

// On the bits: a GPU may drop the sign of a NaN when it converts half to float.
MSL_INLINE constexpr bool signbit(float x) { return msl_impl::signbit(x); }
MSL_INLINE constexpr bool signbit(half x) { return (msl_impl::bit_cast<ushort>(x) >> 15) != 0; }
MSL_LIFT1(signbit, takes_floating)

MSL_INLINE constexpr bool isnormal(float x) {
  return msl_impl::magnitude_bits(x) >= 0x00800000u && msl_impl::isfinite(x);
}
MSL_INLINE constexpr bool isnormal(half x) {
  const uint magnitude = msl_impl::bit_cast<ushort>(x) & 0x7fffu;
  return magnitude >= 0x0400u && magnitude < 0x7c00u;
}
MSL_LIFT1(isnormal, takes_floating)

MSL_INLINE constexpr bool any(bool x) { return x; }
MSL_INLINE constexpr bool all(bool x) { return x; }
template <int N>
MSL_INLINE constexpr bool any(const vec<bool, N>& v) {
  if constexpr (N == 2) {
    return v.x || v.y;
  } else if constexpr (N == 3) {
    return v.x || v.y || v.z;
  } else {
    return v.x || v.y || v.z || v.w;
  }
}
template <int N>
MSL_INLINE constexpr bool all(const vec<bool, N>& v) {
  return !any(!v);
}

// c ? b : a, for each component.
template <class T, class = enable_if_t<is_scalar_v<T>>>
MSL_INLINE constexpr T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class T, int N>
MSL_INLINE constexpr vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b,
                                      const vec<bool, N>& c) {
  using R = vec<T, N>;
#define MSL_TERM(m) (c.m ? b.m : a.m)
  MSL_EACH_COMPONENT(N, R, MSL_TERM)
#undef MSL_TERM
}
template <class T, int N>
MSL_INLINE constexpr vec<T, N> select(const vec<T, N>& a, const msl_impl::as_is<vec<T, N>>& b,
                                      const msl_impl::as_is<vec<bool, N>>& c) {
  const vec<T, N>& second = b;
  const vec<bool, N>& condition = c;
  return select(a, second, condition);
}
template <class S, class T, int N, class = msl_impl::if_scalar<S>>
MSL_INLINE constexpr vec<T, N> select(S a, const vec<T, N>& b,
                                      const msl_impl::as_is<vec<bool, N>>& c) {
  return select(vec<T, N>(a), b, c);
}

}  // namespace msl::metal
