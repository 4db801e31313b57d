// Replacements, emitted by the front end, for Metal expressions that mean something else in C++:
// swizzles, shifts, integer division. Used by emitted code only.
#pragma once

#include <msl/metal.h>

namespace msl::msl_support {

template <class T>
struct plain {
  typedef T type;
};
template <class T>
struct plain<const T> : plain<T> {};
template <class T>
struct plain<volatile T> : plain<T> {};
template <class T>
struct plain<const volatile T> : plain<T> {};
template <class T>
struct plain<T&> : plain<T> {};
template <class T>
struct plain<T&&> : plain<T> {};

// T, which the compiler learns only where a template of U is instantiated.
template <class T, class U>
struct dependent {
  typedef T type;
};

// For calls in which a half or bfloat chooses among overloads as a float does.
template <class T>
inline constexpr bool is_promoted = msl_impl::same<T, half> || msl_impl::same<T, bfloat>;
template <class... T>
using if_promoted = metal::enable_if_t<(is_promoted<T> || ...)>;
template <class T>
MSL_INLINE constexpr metal::conditional_t<is_promoted<T>, float, T> promoted(T value) {
  return value;
}

template <class T>
inline constexpr bool is_vector_type = false;
template <class T, int N>
inline constexpr bool is_vector_type<metal::vec<T, N>> = true;
template <class T, int N>
inline constexpr bool is_vector_type<metal::packed_vec<T, N>> = true;
template <class T>
inline constexpr bool is_vector = is_vector_type<typename plain<T>::type>;

// get_xy(v) is v.xy and set_xy(v) = value assigns to it, for v a vector or a struct with a member
// xy.
#define MSL_SWIZZLE(NAME, ...)                                                       \
  template <class V>                                                                 \
  inline __attribute__((always_inline)) constexpr decltype(auto) get_##NAME(V&& v) { \
    if constexpr (is_vector<V>) {                                                    \
      return msl_impl::swizzle<__VA_ARGS__>(v);                                      \
    } else {                                                                         \
      return (static_cast<V&&>(v).NAME);                                             \
    }                                                                                \
  }                                                                                  \
  template <class V>                                                                 \
  inline __attribute__((always_inline)) constexpr decltype(auto) set_##NAME(V&& v) { \
    if constexpr (is_vector<V>) {                                                    \
      return msl_impl::swizzle_ref<__VA_ARGS__>(v);                                  \
    } else {                                                                         \
      return (static_cast<V&&>(v).NAME);                                             \
    }                                                                                \
  }
// The names r, g, b, a of the components x, y, z, w.
#define MSL_COMPONENT(NAME, MEMBER)                                                  \
  template <class V>                                                                 \
  inline __attribute__((always_inline)) constexpr decltype(auto) get_##NAME(V&& v) { \
    if constexpr (is_vector<V>) {                                                    \
      return (static_cast<V&&>(v).MEMBER);                                           \
    } else {                                                                         \
      return (static_cast<V&&>(v).NAME);                                             \
    }                                                                                \
  }                                                                                  \
  template <class V>                                                                 \
  inline __attribute__((always_inline)) constexpr decltype(auto) set_##NAME(V&& v) { \
    return get_##NAME(static_cast<V&&>(v));                                          \
  }

// True for built-in integer types; everything else keeps its own operators.
template <class T>
inline constexpr bool is_integer = false;
#define MSL_INTEGER(T) \
  template <>          \
  inline constexpr bool is_integer<T> = true;
MSL_INTEGER(bool)
MSL_INTEGER(char)
MSL_INTEGER(signed char)
MSL_INTEGER(unsigned char)
MSL_INTEGER(short)
MSL_INTEGER(unsigned short)
MSL_INTEGER(int)
MSL_INTEGER(unsigned int)
MSL_INTEGER(long)
MSL_INTEGER(unsigned long)
MSL_INTEGER(long long)
MSL_INTEGER(unsigned long long)
#undef MSL_INTEGER

// Metal uses only as many low bits of a shift count as the width of the promoted left operand
// requires; in C++ larger counts are undefined, and vector instructions give zero for them.
template <class A, class B>
inline __attribute__((always_inline)) constexpr auto shift_left(A a, B b) -> decltype(a << b) {
  if constexpr (is_integer<A> && is_integer<B>) {
    typedef decltype(a << b) R;
    return R(a) << (static_cast<unsigned>(b) & (sizeof(R) * 8 - 1));
  } else {
    return a << b;
  }
}
template <class A, class B>
inline __attribute__((always_inline)) constexpr auto shift_right(A a, B b) -> decltype(a >> b) {
  if constexpr (is_integer<A> && is_integer<B>) {
    typedef decltype(a >> b) R;
    return R(a) >> (static_cast<unsigned>(b) & (sizeof(R) * 8 - 1));
  } else {
    return a >> b;
  }
}

// A GPU does not trap on integer division: dividing by zero gives all ones, and the one quotient
// that does not fit wraps around. Remainders by zero give the dividend.
template <class A, class B>
inline __attribute__((always_inline)) constexpr auto divide(A a, B b) -> decltype(a / b) {
  if constexpr (is_integer<A> && is_integer<B>) {
    typedef decltype(a / b) R;
    const R divisor = R(b);
    if constexpr (R(-1) < R(0)) {
      if (divisor == R(-1)) return static_cast<R>(R(0) - R(a));
    }
    return divisor == R(0) ? R(-1) : R(a) / divisor;
  } else {
    return a / b;
  }
}
template <class A, class B>
inline __attribute__((always_inline)) constexpr auto remainder(A a, B b) -> decltype(a % b) {
  if constexpr (is_integer<A> && is_integer<B>) {
    typedef decltype(a % b) R;
    const R divisor = R(b);
    if constexpr (R(-1) < R(0)) {
      if (divisor == R(-1)) return R(0);
    }
    return divisor == R(0) ? R(a) : R(a) % divisor;
  } else {
    return a % b;
  }
}

// cast<T>(x) is static_cast<T>(x), and c_cast<T>(x) is T(x), except that floating-point numbers
// convert to integers as on GPUs. implicitly<T>(x) is such an integer, or x itself: an object that
// is a reference if x is one, and a value if x is, because what binds a reference to the result
// makes only values live as long.
template <class To, class From>
inline constexpr bool is_float_to_int =
    msl_impl::conversion::is_float_to_int<typename plain<To>::type, typename plain<From>::type>;
template <class To, class From>
using implicit_result =
    metal::conditional_t<is_float_to_int<To, From>, typename plain<To>::type, From>;
template <class To, class From>
inline __attribute__((always_inline)) constexpr To cast(From&& x) {
  if constexpr (is_float_to_int<To, From>) {
    return msl_impl::conversion::saturated<typename plain<To>::type>(float(x));
  } else {
    return static_cast<To>(static_cast<From&&>(x));
  }
}
template <class To, class From>
inline __attribute__((always_inline)) constexpr To c_cast(From&& x) {
  if constexpr (is_float_to_int<To, From>) {
    return msl_impl::conversion::saturated<typename plain<To>::type>(float(x));
  } else {
    return (To) static_cast<From&&>(x);
  }
}
template <class To, class From>
inline __attribute__((always_inline)) constexpr implicit_result<To, From> implicitly(From&& x) {
  if constexpr (is_float_to_int<To, From>) {
    return msl_impl::conversion::saturated<typename plain<To>::type>(float(x));
  } else {
    return static_cast<From&&>(x);
  }
}

// The types of the parameters of a function, or of an object's only call operator; none of others.
template <class... P>
struct parameters {
  template <unsigned N, class... Rest>
  struct at {
    typedef void type;
  };
  template <class First, class... Rest>
  struct at<0, First, Rest...> {
    typedef First type;
  };
  template <unsigned N, class First, class... Rest>
  struct at<N, First, Rest...> : at<N - 1, Rest...> {};
  template <unsigned N>
  using type = typename at<N, P...>::type;
};
template <class F>
struct signature_of {
  typedef parameters<> type;
};
template <class R, class... P>
struct signature_of<R(P...)> {
  typedef parameters<P...> type;
};
template <class R, class... P>
struct signature_of<R (*)(P...)> {
  typedef parameters<P...> type;
};
template <class R, class C, class... P>
struct signature_of<R (C::*)(P...)> {
  typedef parameters<P...> type;
};
template <class R, class C, class... P>
struct signature_of<R (C::*)(P...) const> {
  typedef parameters<P...> type;
};
template <class...>
using no_type = void;
template <class F, class = void>
struct called_with : signature_of<F> {};
template <class F>
struct called_with<F, no_type<decltype(&F::operator())>> : signature_of<decltype(&F::operator())> {
};
template <class P>
struct converted_parameter {
  typedef P type;
};
template <class P>
struct converted_parameter<P&> {
  typedef void type;
};
template <class P>
struct converted_parameter<const P&> {
  typedef P type;
};

// argument<F, N>(x) is what x converts to as argument N of a call of an object of type F.
template <class F, unsigned N, class From>
inline __attribute__((always_inline)) constexpr decltype(auto) argument(From&& x) {
  using Called = typename called_with<metal::remove_cv_t<metal::remove_reference_t<F>>>::type;
  using To = typename converted_parameter<typename Called::template type<N>>::type;
  return implicitly<To, From>(static_cast<From&&>(x));
}
template <unsigned... N>
struct places {};
template <unsigned Count, unsigned... N>
struct first_places : first_places<Count - 1, Count - 1, N...> {};
template <unsigned... N>
struct first_places<0, N...> {
  typedef places<N...> type;
};
template <class F, unsigned... N, class... A>
inline __attribute__((always_inline)) constexpr decltype(auto) call_at(places<N...>, F&& f,
                                                                       A&&... x) {
  return f(argument<F, N, A>(static_cast<A&&>(x))...);
}
// call(f, x...) is f(x...) with such arguments.
template <class F, class... A>
inline __attribute__((always_inline)) constexpr decltype(auto) call(F&& f, A&&... x) {
  return call_at(typename first_places<sizeof...(A)>::type(), static_cast<F&&>(f),
                 static_cast<A&&>(x)...);
}

// Assignments with these, and those with an integer on the left and a floating-point number on the
// right.
template <class A, class B>
inline __attribute__((always_inline)) constexpr auto add(const A& a, const B& b) {
  return a + b;
}
template <class A, class B>
inline __attribute__((always_inline)) constexpr auto subtract(const A& a, const B& b) {
  return a - b;
}
template <class A, class B>
inline __attribute__((always_inline)) constexpr auto multiply(const A& a, const B& b) {
  return a * b;
}
#define MSL_ASSIGNMENT(NAME, OPERATOR)                                                       \
  template <class A, class B>                                                                \
  inline __attribute__((always_inline)) constexpr decltype(auto) assign_##NAME(A&& a, B b) { \
    typedef typename plain<A>::type T;                                                       \
    if constexpr (is_integer<T> && is_integer<B>) {                                          \
      a = static_cast<T>(NAME(T(a), b));                                                     \
      return static_cast<A&&>(a);                                                            \
    } else if constexpr (is_float_to_int<A, B>) {                                            \
      a = msl_impl::conversion::saturated<T>(float(NAME(T(a), b)));                          \
      return static_cast<A&&>(a);                                                            \
    } else {                                                                                 \
      return a OPERATOR b;                                                                   \
    }                                                                                        \
  }
MSL_ASSIGNMENT(shift_left, <<=)
MSL_ASSIGNMENT(shift_right, >>=)
MSL_ASSIGNMENT(divide, /=)
MSL_ASSIGNMENT(remainder, %=)
MSL_ASSIGNMENT(add, +=)
MSL_ASSIGNMENT(subtract, -=)
MSL_ASSIGNMENT(multiply, *=)
#undef MSL_ASSIGNMENT

// Checks the alignment of x, under a sanitizer (dialect/alignment.py).
template <class T>
inline __attribute__((always_inline)) constexpr T& aligned(T& x) {
  return x;
}

// The type to which an operand of type A of a conditional expression is cast, where the others have
// types B. If some are half or bfloat and the rest other numbers, it is the result of Metal's
// arithmetic conversions; otherwise A, which changes nothing. A literal 0 stays a null pointer.
template <class... T>
struct arm_types {
  template <class S>
  static constexpr bool some = (msl_impl::same<S, T> || ...);
  static constexpr bool is_mixed =
      (msl_impl::is_arithmetic_scalar<T> && ...) && (some<half> || some<bfloat>);
  static constexpr bool is_float = (some<half> && some<bfloat>) || some<float> || some<double>;
  typedef metal::conditional_t<is_float, float, metal::conditional_t<some<half>, half, bfloat>>
      type;
};
template <class A, class... B>
inline constexpr bool all_like = (msl_impl::same<A, B> && ...);
template <class A, bool IsMixed, class... B>
struct arm_type {
  typedef A type;
};
template <class A, class... B>
struct arm_type<A, true, B...> : arm_types<typename plain<A>::type, typename plain<B>::type...> {};
template <class P>
struct arm_type<int, false, P> {
  typedef typename plain<P>::type T;
  typedef metal::conditional_t<metal::is_pointer_v<T>, T, int> type;
};
template <class A, class... B>
using arm =
    typename arm_type<A,
                      !all_like<typename plain<A>::type, typename plain<B>::type...> &&
                          arm_types<typename plain<A>::type, typename plain<B>::type...>::is_mixed,
                      B...>::type;

// arm_of<A, arms<A, B...>> is arm<A, B...> for very many operands: linear in their number, and no
// deeper than the compilers' limits.
template <class T>
inline constexpr unsigned kind_of_arm =
    msl_impl::same<T, half>                                 ? 1
    : msl_impl::same<T, bfloat>                             ? 2
    : !msl_impl::is_arithmetic_scalar<T>                    ? 8
    : msl_impl::same<T, float> || msl_impl::same<T, double> ? 4
                                                            : 16;
template <class... T>
struct arms {
  static constexpr unsigned kinds() {
    const unsigned all[] = {kind_of_arm<typename plain<T>::type>...};
    unsigned found = 0;
    for (unsigned kind : all) found |= kind;
    return found;
  }
  static constexpr bool is_mixed =
      (kinds() & 3) != 0 && (kinds() & 8) == 0 && kinds() != 1 && kinds() != 2;
  static constexpr bool is_float = (kinds() & 4) != 0 || (kinds() & 3) == 3;
  typedef metal::conditional_t<is_float, float,
                               metal::conditional_t<(kinds() & 1) != 0, half, bfloat>>
      type;
};
template <class A, class Arms>
using arm_of = metal::conditional_t<Arms::is_mixed, typename Arms::type, A>;

}  // namespace msl::msl_support
