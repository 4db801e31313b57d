// metal_geometric: dot, cross, length and their kin.
#pragma once

#include <msl/integer.h>

namespace msl::metal {

template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr T dot(const vec<T, N>& a, const vec<T, N>& b) {
  if constexpr (N == 2) {
    return T(a.x * b.x + a.y * b.y);
  } else if constexpr (N == 3) {
    return T(a.x * b.x + a.y * b.y + a.z * b.z);
  } else {
    return T(a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w);
  }
}
// The second argument converts. Separate from the form above, which is preferred to a user's
// template dot(T, T).
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr T dot(const vec<T, N>& a, const msl_impl::as_is<vec<T, N>>& b) {
  const vec<T, N>& second = b;
  return dot(a, second);
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr T dot(const packed_vec<T, N>& a, const packed_vec<T, N>& b) {
  return dot(vec<T, N>(a), vec<T, N>(b));
}
template <class T, int N, class B, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr T dot(const packed_vec<T, N>& a, const B& b) {
  return dot(vec<T, N>(a), vec<T, N>(b));
}

template <class T, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr vec<T, 3> cross(const vec<T, 3>& a, const vec<T, 3>& b) {
  return vec<T, 3>(T(a.y * b.z - a.z * b.y), T(a.z * b.x - a.x * b.z), T(a.x * b.y - a.y * b.x));
}
template <class T, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr vec<T, 3> cross(const vec<T, 3>& a, const msl_impl::as_is<vec<T, 3>>& b) {
  const vec<T, 3>& second = b;
  return cross(a, second);
}
template <class T, class B, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr vec<T, 3> cross(const packed_vec<T, 3>& a, const B& b) {
  return cross(vec<T, 3>(a), vec<T, 3>(b));
}

template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr T length_squared(const vec<T, N>& a) {
  return dot(a, a);
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE T length(const vec<T, N>& a) {
  return T(sqrt(dot(a, a)));
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr T distance_squared(const vec<T, N>& a, const vec<T, N>& b) {
  return length_squared(a - b);
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE T distance(const vec<T, N>& a, const vec<T, N>& b) {
  return length(a - b);
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE vec<T, N> normalize(const vec<T, N>& a) {
  return a * T(rsqrt(dot(a, a)));
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr vec<T, N> reflect(const vec<T, N>& i, const vec<T, N>& n) {
  return i - n * T(T(2) * dot(n, i));
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr vec<T, N> reflect(const vec<T, N>& i, const msl_impl::as_is<vec<T, N>>& n) {
  const vec<T, N>& second = n;
  return reflect(i, second);
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE vec<T, N> refract(const vec<T, N>& i, const msl_impl::as_is<vec<T, N>>& n, T eta) {
  const T cosine = dot(n, i);
  const T k = T(T(1) - eta * eta * (T(1) - cosine * cosine));
  if (k < T(0)) return vec<T, N>(T(0));
  return i * eta - n * T(eta * cosine + T(sqrt(k)));
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr vec<T, N> faceforward(const vec<T, N>& n, const vec<T, N>& i,
                                           const vec<T, N>& reference) {
  return dot(reference, i) < T(0) ? n : -n;
}
template <class T, int N, class = msl_impl::takes_floating<T>>
MSL_INLINE constexpr vec<T, N> faceforward(const vec<T, N>& n, const msl_impl::as_is<vec<T, N>>& i,
                                           const msl_impl::as_is<vec<T, N>>& reference) {
  const vec<T, N>&second = i, &third = reference;
  return faceforward(n, second, third);
}

#define MSL_UNPACKED(NAME)                                       \
  template <class T, int N, class = msl_impl::takes_floating<T>> \
  MSL_INLINE auto NAME(const packed_vec<T, N>& a) {              \
    return NAME(vec<T, N>(a));                                   \
  }
MSL_UNPACKED(length_squared)
MSL_UNPACKED(length)
MSL_UNPACKED(normalize)
#undef MSL_UNPACKED
#define MSL_UNPACKED(NAME)                                                \
  template <class T, int N, class B, class = msl_impl::takes_floating<T>> \
  MSL_INLINE T NAME(const packed_vec<T, N>& a, const B& b) {              \
    return NAME(vec<T, N>(a), vec<T, N>(b));                              \
  }
MSL_UNPACKED(distance_squared)
MSL_UNPACKED(distance)
#undef MSL_UNPACKED

namespace precise {
using metal::distance;
using metal::length;
using metal::normalize;
}  // namespace precise
namespace fast {
using metal::distance;
using metal::length;
using metal::normalize;
}  // namespace fast

}  // namespace msl::metal
