// Macros that turn a function of scalars into the same function of vectors, element by element.
//
// Metal's vector overloads are not templates: a scalar argument is splatted when another argument
// is a vector. Templates that deduce the vector from one argument only, and let the others convert
// to it, behave alike.
#pragma once

#include <msl/vector.h>

namespace msl::msl_impl {

// The elements that a function takes: those of Metal's overloads. A vector of others is no argument
// of it, so that a program may overload the function for them, also as a template.
template <class T>
using takes_floating = metal::enable_if_t<same<T, float> || same<T, half>>;
template <class T>
using takes_integer = metal::enable_if_t<is_integer_scalar<T> && !same<T, bool>>;
template <class T>
using takes_number =
    metal::enable_if_t<same<T, float> || same<T, half> || (is_integer_scalar<T> && !same<T, bool>)>;
template <class T>
using takes_word = metal::enable_if_t<same<T, int> || same<T, uint>>;

// A parameter that takes part in no deduction.
template <class T>
using as_is = metal::type_identity_t<T>;

}  // namespace msl::msl_impl

#define MSL_LIFT_TERM1(c) f(a.c)
#define MSL_LIFT_TERM2(c) f(a.c, b.c)
#define MSL_LIFT_TERM3(c) f(a.c, b.c, d.c)

#define MSL_LIFT1(NAME, TAKES)                                                 \
  template <class T, int N, class = msl_impl::TAKES<T>>                        \
  MSL_INLINE constexpr auto NAME(const vec<T, N>& a) {                         \
    const auto f = [](T x) __attribute__((always_inline)) { return NAME(x); }; \
    using R = vec<decltype(f(a.x)), N>;                                        \
    MSL_EACH_COMPONENT(N, R, MSL_LIFT_TERM1)                                   \
  }                                                                            \
  template <class T, int N, class = msl_impl::TAKES<T>>                        \
  MSL_INLINE constexpr auto NAME(const packed_vec<T, N>& a) {                  \
    return NAME(vec<T, N>(a));                                                 \
  }                                                                            \
  template <class T, int N, bool P, class = msl_impl::TAKES<T>, int... I>      \
  MSL_INLINE constexpr auto NAME(const swizzle_reference<T, N, P, I...>& a) {  \
    return NAME(a.load());                                                     \
  }

// All vectors; a scalar second; a scalar first; a packed vector first. The first form exists beside
// the second so that it is preferred to a user's template f(T, T).
#define MSL_LIFT2(NAME, TAKES)                                                                   \
  template <class T, int N, class = msl_impl::TAKES<T>>                                          \
  MSL_INLINE constexpr auto NAME(const vec<T, N>& a, const vec<T, N>& b) {                       \
    const auto f = [](T x, T y) __attribute__((always_inline)) { return NAME(x, y); };           \
    using R = vec<decltype(f(a.x, b.x)), N>;                                                     \
    MSL_EACH_COMPONENT(N, R, MSL_LIFT_TERM2)                                                     \
  }                                                                                              \
  template <class T, int N, class = msl_impl::TAKES<T>>                                          \
  MSL_INLINE constexpr auto NAME(const vec<T, N>& a, const msl_impl::as_is<vec<T, N>>& b) {      \
    const vec<T, N>& second = b;                                                                 \
    return NAME(a, second);                                                                      \
  }                                                                                              \
  template <class S, class T, int N, class = msl_impl::if_scalar<S>, class = msl_impl::TAKES<T>> \
  MSL_INLINE constexpr auto NAME(S a, const vec<T, N>& b) {                                      \
    return NAME(vec<T, N>(a), b);                                                                \
  }                                                                                              \
  template <class T, int N, class B, class = msl_impl::TAKES<T>>                                 \
  MSL_INLINE constexpr auto NAME(const packed_vec<T, N>& a, const B& b) {                        \
    return NAME(vec<T, N>(a), vec<T, N>(b));                                                     \
  }

#define MSL_LIFT3(NAME, TAKES)                                                                   \
  template <class T, int N, class = msl_impl::TAKES<T>>                                          \
  MSL_INLINE constexpr auto NAME(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& d) {   \
    const auto f = [](T x, T y, T z) __attribute__((always_inline)) { return NAME(x, y, z); };   \
    using R = vec<decltype(f(a.x, b.x, d.x)), N>;                                                \
    MSL_EACH_COMPONENT(N, R, MSL_LIFT_TERM3)                                                     \
  }                                                                                              \
  template <class T, int N, class = msl_impl::TAKES<T>>                                          \
  MSL_INLINE constexpr auto NAME(const vec<T, N>& a, const msl_impl::as_is<vec<T, N>>& b,        \
                                 const msl_impl::as_is<vec<T, N>>& d) {                          \
    const vec<T, N>& second = b;                                                                 \
    const vec<T, N>& third = d;                                                                  \
    return NAME(a, second, third);                                                               \
  }                                                                                              \
  template <class S, class T, int N, class = msl_impl::if_scalar<S>, class = msl_impl::TAKES<T>> \
  MSL_INLINE constexpr auto NAME(S a, const vec<T, N>& b, const msl_impl::as_is<vec<T, N>>& d) { \
    const vec<T, N>& third = d;                                                                  \
    return NAME(vec<T, N>(a), b, third);                                                         \
  }                                                                                              \
  template <class S, class R, class T, int N, class = msl_impl::if_scalar<S>,                    \
            class = msl_impl::if_scalar<R>, class = msl_impl::TAKES<T>>                          \
  MSL_INLINE constexpr auto NAME(S a, R b, const vec<T, N>& d) {                                 \
    return NAME(vec<T, N>(a), vec<T, N>(b), d);                                                  \
  }                                                                                              \
  template <class T, int N, class B, class D, class = msl_impl::TAKES<T>>                        \
  MSL_INLINE constexpr auto NAME(const packed_vec<T, N>& a, const B& b, const D& d) {            \
    return NAME(vec<T, N>(a), vec<T, N>(b), vec<T, N>(d));                                       \
  }
