// Vectors: vec<T, N>, packed_vec<T, N>, their arithmetic and swizzles.
#pragma once

#include <msl/conversion.h>

namespace msl {

namespace metal {
template <class T, int N, bool Packed, int... I>
struct swizzle_reference;
}

namespace msl_impl {

template <class T>
using if_scalar = metal::enable_if_t<metal::is_scalar_v<metal::remove_cv_t<T>>>;
template <class From, class To>
using if_silent = metal::enable_if_t<converts_silently<From, To>>;
template <class From, class To>
using if_on_request = metal::enable_if_t<metal::is_scalar_v<From> && !converts_silently<From, To>>;
template <class T, class U>
using if_different = metal::enable_if_t<!same<T, U>>;
template <class T, class U>
using if_same = metal::enable_if_t<same<T, U>>;

template <int I, class V>
MSL_INLINE constexpr auto& component(V& v) {
  if constexpr (I == 0) {
    return v.x;
  } else if constexpr (I == 1) {
    return v.y;
  } else if constexpr (I == 2) {
    return v.z;
  } else {
    return v.w;
  }
}

// Returns v[i]. Constant expressions may not access a vector as an array.
template <int N, class V>
MSL_INLINE constexpr auto& at(V& v, size_t i) {
  if (__builtin_is_constant_evaluated()) {
    if (i == 0) return v.x;
    if constexpr (N > 3) {
      if (i == 3) return v.w;
    }
    if constexpr (N > 2) {
      if (i == 2) return v.z;
    }
    return v.y;
  }
  return (&v.x)[i];
}

// Integer division never traps on a GPU: by zero it gives all ones, the one quotient that does not
// fit wraps around, and the remainder by zero is the dividend. Only as many bits of a shift count
// are used as the promoted type needs. (rewrite.h does the same for scalars.)
template <class T>
MSL_INLINE constexpr T quotient(T a, T b) {
  if constexpr (is_integer_scalar<T>) {
    if constexpr (kind<T> == Kind::kSigned) {
      if (b == T(-1)) return T(metal::make_unsigned_t<T>(0) - metal::make_unsigned_t<T>(a));
    }
    return b == T(0) ? T(-1) : T(a / b);
  } else {
    return T(a / b);
  }
}
template <class T>
MSL_INLINE constexpr T residue(T a, T b) {
  if constexpr (kind<T> == Kind::kSigned) {
    if (b == T(-1)) return T(0);
  }
  return b == T(0) ? a : T(a % b);
}
template <class T, class C>
MSL_INLINE constexpr int shift_count(C count) {
  return int(count) & int(sizeof(decltype(T(0) << 0)) * 8 - 1);
}

// Evaluates the macro argument with "x", "y", ... for the components of an N-vector, in a context
// of its own for each N. The results are listed, not looped over, so that they are constant
// expressions and vanish at any optimisation level.
#define MSL_EACH_COMPONENT(N, V, EXPRESSION)                              \
  if constexpr (N == 2) {                                                 \
    return V(EXPRESSION(x), EXPRESSION(y));                               \
  } else if constexpr (N == 3) {                                          \
    return V(EXPRESSION(x), EXPRESSION(y), EXPRESSION(z));                \
  } else {                                                                \
    return V(EXPRESSION(x), EXPRESSION(y), EXPRESSION(z), EXPRESSION(w)); \
  }

#if MSL_WHOLE_FLOAT4
typedef float Float4 __attribute__((vector_size(16)));

template <class V>
MSL_INLINE Float4 whole(const V& v) {
  return Float4{v.x, v.y, v.z, v.w};
}

#define MSL_AS_A_WHOLE(op)                    \
  if constexpr (N == 4 && same<T, float>) {   \
    if (!__builtin_is_constant_evaluated()) { \
      const Float4 c = whole(a) op whole(b);  \
      return V(c[0], c[1], c[2], c[3]);       \
    }                                         \
  }
#else
#define MSL_AS_A_WHOLE(op)
#endif

// Base classes of Metal's types, in a namespace of their own: argument-dependent lookup finds the
// functions of the namespaces of base classes, and a program's functions may have the names of
// msl_impl's.
namespace bases {

// The operators of vec and packed_vec. They are friends of a common base class, found only by
// argument-dependent lookup, and take vec: so a scalar, a packed vector or a swizzle on either side
// converts implicitly.
template <class T, int N>
struct vector_operators {
  using V = metal::vec<T, N>;
  using B = metal::vec<bool, N>;

  // ...: an alternative to computing component by component.
#define MSL_ARITHMETIC(op, ...)                                                             \
  friend MSL_INLINE constexpr V operator op(const V& a, const V& b) {                       \
    __VA_ARGS__                                                                             \
    MSL_EACH_COMPONENT(N, V, MSL_TERM)                                                      \
  }                                                                                         \
  friend MSL_INLINE constexpr V& operator op## = (V & a, const V& b) { return a = a op b; } \
  friend MSL_INLINE constexpr metal::packed_vec<T, N>& operator op## =                      \
      (metal::packed_vec<T, N> & a, const V& b) {                                           \
    return a = V(a) op b;                                                                   \
  }
#define MSL_TERM(c) T(a.c + b.c)
  MSL_ARITHMETIC(+, MSL_AS_A_WHOLE(+))
#undef MSL_TERM
#define MSL_TERM(c) T(a.c - b.c)
  MSL_ARITHMETIC(-, MSL_AS_A_WHOLE(-))
#undef MSL_TERM
#define MSL_TERM(c) T(a.c* b.c)
  MSL_ARITHMETIC(*, MSL_AS_A_WHOLE(*))
#undef MSL_TERM
#define MSL_TERM(c) T(quotient<T>(a.c, b.c))
  MSL_ARITHMETIC(/)
#undef MSL_TERM
#define MSL_TERM(c) T(residue<T>(a.c, b.c))
  MSL_ARITHMETIC(%)
#undef MSL_TERM
#define MSL_TERM(c) T(a.c & b.c)
  MSL_ARITHMETIC(&)
#undef MSL_TERM
#define MSL_TERM(c) T(a.c | b.c)
  MSL_ARITHMETIC(|)
#undef MSL_TERM
#define MSL_TERM(c) T(a.c ^ b.c)
  MSL_ARITHMETIC(^)
#undef MSL_TERM
#define MSL_TERM(c) T(a.c << shift_count<T>(b.c))
  MSL_ARITHMETIC(<<)
#undef MSL_TERM
#define MSL_TERM(c) T(a.c >> shift_count<T>(b.c))
  MSL_ARITHMETIC(>>)
#undef MSL_TERM
#undef MSL_ARITHMETIC
#undef MSL_AS_A_WHOLE

  // Shift counts may have another element type.
#define MSL_SHIFT(op)                                                                 \
  template <class U, class = if_different<T, U>>                                      \
  friend MSL_INLINE constexpr V operator op(const V& a, const metal::vec<U, N>& b) {  \
    MSL_EACH_COMPONENT(N, V, MSL_TERM)                                                \
  }                                                                                   \
  template <class U, class = if_different<T, U>>                                      \
  friend MSL_INLINE constexpr V& operator op## = (V & a, const metal::vec<U, N>& b) { \
    return a = a op b;                                                                \
  }
#define MSL_TERM(c) T(a.c << shift_count<T>(b.c))
  MSL_SHIFT(<<)
#undef MSL_TERM
#define MSL_TERM(c) T(a.c >> shift_count<T>(b.c))
  MSL_SHIFT(>>)
#undef MSL_TERM
#undef MSL_SHIFT

#define MSL_COMPARISON(op)                                            \
  friend MSL_INLINE constexpr B operator op(const V& a, const V& b) { \
    MSL_EACH_COMPONENT(N, B, MSL_TERM)                                \
  }
#define MSL_TERM(c) (a.c < b.c)
  MSL_COMPARISON(<)
#undef MSL_TERM
#define MSL_TERM(c) (a.c > b.c)
  MSL_COMPARISON(>)
#undef MSL_TERM
#define MSL_TERM(c) (a.c <= b.c)
  MSL_COMPARISON(<=)
#undef MSL_TERM
#define MSL_TERM(c) (a.c >= b.c)
  MSL_COMPARISON(>=)
#undef MSL_TERM
#define MSL_TERM(c) (a.c == b.c)
  MSL_COMPARISON(==)
#undef MSL_TERM
#define MSL_TERM(c) (a.c != b.c)
  MSL_COMPARISON(!=)
#undef MSL_TERM
#define MSL_TERM(c) (a.c && b.c)
  MSL_COMPARISON(&&)
#undef MSL_TERM
#define MSL_TERM(c) (a.c || b.c)
  MSL_COMPARISON(||)
#undef MSL_TERM
#undef MSL_COMPARISON

#define MSL_TERM(c) T(-a.c)
  friend MSL_INLINE constexpr V operator-(const V& a){MSL_EACH_COMPONENT(N, V, MSL_TERM)}
#undef MSL_TERM
#define MSL_TERM(c) T(~a.c)
  friend MSL_INLINE constexpr V operator~(const V& a){MSL_EACH_COMPONENT(N, V, MSL_TERM)}
#undef MSL_TERM
#define MSL_TERM(c) (!a.c)
  friend MSL_INLINE constexpr B operator!(const V& a) {
    MSL_EACH_COMPONENT(N, B, MSL_TERM)
  }
#undef MSL_TERM
  friend MSL_INLINE constexpr V operator+(const V& a) { return a; }
  friend MSL_INLINE constexpr V& operator++(V& a) { return a = a + V(T(1)); }
  friend MSL_INLINE constexpr V& operator--(V& a) { return a = a - V(T(1)); }
  friend MSL_INLINE constexpr V operator++(V& a, int) {
    const V before = a;
    a = a + V(T(1));
    return before;
  }
  friend MSL_INLINE constexpr V operator--(V& a, int) {
    const V before = a;
    a = a - V(T(1));
    return before;
  }
};

// Gives a vector its alignment in structs and arrays. It is a base class, because GPUs access
// vectors at the alignment of an element, and so must the code for the CPU: clang's
// -fmax-type-align (compiler.py) applies to types that have no attribute of their own. V: two bases
// of one type would not be at the same address.
template <class V, size_t Bytes>
struct alignas(Bytes) aligned {};

}  // namespace bases

// Makes clang pass and return vectors by value in memory, which vanishes when a call is inlined.
// Otherwise the x86-64 ABI has it pass a float4 as two vectors of two floats, which stay in its
// intermediate code after inlining, and the loops over threads around them are not vectorised. A
// member at an offset that does not fit its type is what the ABI keeps out of registers; it has no
// elements.
#if defined(__clang__) && defined(__x86_64__)
struct alignas(64) Misaligned {
  char byte;
};
#define MSL_IN_MEMORY ::msl::msl_impl::Misaligned in_memory[0] __attribute__((packed));
#else
#define MSL_IN_MEMORY
#endif

struct splat {};  // selects the constructor that fills every component

}  // namespace msl_impl

namespace metal {

// Members of vectors of every width: element access, splat, conversion of the element type.
#define MSL_VECTOR_COMMON(N, ...)                                                                  \
  using value_type = T;                                                                            \
  using element_type = T;                                                                          \
  vec() = default;                                                                                 \
  template <class S, class = msl_impl::if_silent<S, T>, class = msl_impl::if_scalar<S>>            \
  MSL_INLINE constexpr vec(S s) : vec(msl_impl::splat{}, msl_impl::conversion::converted<T>(s)) {} \
  template <class S, class = msl_impl::if_on_request<S, T>, int = 0>                               \
  MSL_INLINE explicit constexpr vec(S s)                                                           \
      : vec(msl_impl::splat{}, msl_impl::conversion::converted<T>(s)) {}                           \
  template <class U, class = msl_impl::if_different<T, U>>                                         \
  MSL_INLINE explicit constexpr vec(const vec<U, N>& v) : __VA_ARGS__ {}                           \
  MSL_INLINE constexpr vec(const packed_vec<T, N>& v) : __VA_ARGS__ {}                             \
  template <class U, class = msl_impl::if_different<T, U>>                                         \
  MSL_INLINE explicit constexpr vec(const packed_vec<U, N>& v) : __VA_ARGS__ {}                    \
  /* Templates, so that vectors stay trivially copyable. */                                        \
  template <class U, class = msl_impl::if_same<T, U>>                                              \
  MSL_INLINE constexpr vec(const volatile vec<U, N>& v) : __VA_ARGS__ {}                           \
  template <int = 0>                                                                               \
  MSL_INLINE constexpr void operator=(const vec& v) volatile {                                     \
    for (int i = 0; i < N; ++i) (&this->x)[i] = v[i];                                              \
  }                                                                                                \
  MSL_INLINE constexpr T& operator[](size_t i) { return msl_impl::at<N>(*this, i); }               \
  MSL_INLINE constexpr const T& operator[](size_t i) const { return msl_impl::at<N>(*this, i); }

template <class T>
struct vec<T, 2> : msl_impl::bases::vector_operators<T, 2>,
                   msl_impl::bases::aligned<vec<T, 2>, 2 * sizeof(T)> {
  T x, y;
  MSL_IN_MEMORY
  MSL_VECTOR_COMMON(2, x(msl_impl::conversion::converted<T>(v.x)),
                    y(msl_impl::conversion::converted<T>(v.y)))
  MSL_INLINE constexpr vec(msl_impl::splat, T s) : x(s), y(s) {}
  template <class A, class B, class = msl_impl::if_scalar<A>, class = msl_impl::if_scalar<B>>
  MSL_INLINE constexpr vec(A a, B b)
      : x(msl_impl::conversion::converted<T>(a)), y(msl_impl::conversion::converted<T>(b)) {}
};

template <class T>
struct vec<T, 3> : msl_impl::bases::vector_operators<T, 3>,
                   msl_impl::bases::aligned<vec<T, 3>, 4 * sizeof(T)> {
  T x, y, z;
  MSL_IN_MEMORY
  MSL_VECTOR_COMMON(3, x(msl_impl::conversion::converted<T>(v.x)),
                    y(msl_impl::conversion::converted<T>(v.y)),
                    z(msl_impl::conversion::converted<T>(v.z)))
  MSL_INLINE constexpr vec(msl_impl::splat, T s) : x(s), y(s), z(s) {}
  template <class A, class B, class C, class = msl_impl::if_scalar<A>,
            class = msl_impl::if_scalar<B>, class = msl_impl::if_scalar<C>>
  MSL_INLINE constexpr vec(A a, B b, C c)
      : x(msl_impl::conversion::converted<T>(a)),
        y(msl_impl::conversion::converted<T>(b)),
        z(msl_impl::conversion::converted<T>(c)) {}
  // {a, b}: the rest is zero.
  template <class A, class B, class = msl_impl::if_scalar<A>, class = msl_impl::if_scalar<B>>
  MSL_INLINE constexpr vec(A a, B b) : vec(a, b, T(0)) {}
  MSL_INLINE constexpr vec(const vec<T, 2>& a, T b) : x(a.x), y(a.y), z(b) {}
  MSL_INLINE constexpr vec(T a, const vec<T, 2>& b) : x(a), y(b.x), z(b.y) {}
};

template <class T>
struct vec<T, 4> : msl_impl::bases::vector_operators<T, 4>,
                   msl_impl::bases::aligned<vec<T, 4>, 4 * sizeof(T)> {
  T x, y, z, w;
  MSL_IN_MEMORY
  MSL_VECTOR_COMMON(4, x(msl_impl::conversion::converted<T>(v.x)),
                    y(msl_impl::conversion::converted<T>(v.y)),
                    z(msl_impl::conversion::converted<T>(v.z)),
                    w(msl_impl::conversion::converted<T>(v.w)))
  MSL_INLINE constexpr vec(msl_impl::splat, T s) : x(s), y(s), z(s), w(s) {}
  template <class A, class B, class C, class D, class = msl_impl::if_scalar<A>,
            class = msl_impl::if_scalar<B>, class = msl_impl::if_scalar<C>,
            class = msl_impl::if_scalar<D>>
  MSL_INLINE constexpr vec(A a, B b, C c, D d)
      : x(msl_impl::conversion::converted<T>(a)),
        y(msl_impl::conversion::converted<T>(b)),
        z(msl_impl::conversion::converted<T>(c)),
        w(msl_impl::conversion::converted<T>(d)) {}
  // {a, b} and {a, b, c}: the rest is zero.
  template <class A, class B, class = msl_impl::if_scalar<A>, class = msl_impl::if_scalar<B>>
  MSL_INLINE constexpr vec(A a, B b) : vec(a, b, T(0), T(0)) {}
  template <class A, class B, class C, class = msl_impl::if_scalar<A>,
            class = msl_impl::if_scalar<B>, class = msl_impl::if_scalar<C>>
  MSL_INLINE constexpr vec(A a, B b, C c) : vec(a, b, c, T(0)) {}
  MSL_INLINE constexpr vec(const vec<T, 3>& a, T b) : x(a.x), y(a.y), z(a.z), w(b) {}
  MSL_INLINE constexpr vec(T a, const vec<T, 3>& b) : x(a), y(b.x), z(b.y), w(b.z) {}
  MSL_INLINE constexpr vec(const vec<T, 2>& a, const vec<T, 2>& b)
      : x(a.x), y(a.y), z(b.x), w(b.y) {}
  MSL_INLINE constexpr vec(const vec<T, 2>& a, T b, T c) : x(a.x), y(a.y), z(b), w(c) {}
  MSL_INLINE constexpr vec(T a, const vec<T, 2>& b, T c) : x(a), y(b.x), z(b.y), w(c) {}
  MSL_INLINE constexpr vec(T a, T b, const vec<T, 2>& c) : x(a), y(b), z(c.x), w(c.y) {}
};

// Not in the specification, but vec<T, N> is instantiated with a computed N in code in the wild.
template <class T>
struct vec<T, 1> {
  T x;
  using value_type = T;
  vec() = default;
  MSL_INLINE constexpr vec(T s) : x(s) {}
  MSL_INLINE constexpr operator T() const { return x; }
  MSL_INLINE constexpr T& operator[](size_t) { return x; }
  MSL_INLINE constexpr const T& operator[](size_t) const { return x; }
};

// Vectors of 8 and 16 elements, which have no named components.
template <class T, int N>
struct wide_vec;
template <class T>
struct vec<T, 8> : wide_vec<T, 8> {
  using wide_vec<T, 8>::wide_vec;
};
template <class T>
struct vec<T, 16> : wide_vec<T, 16> {
  using wide_vec<T, 16>::wide_vec;
};
template <class T, int N>
struct wide_vec : msl_impl::bases::aligned<vec<T, N>, N * sizeof(T)> {
  using V = vec<T, N>;
  using B = vec<bool, N>;
  using value_type = T;
  using element_type = T;
  T elements[N];

  wide_vec() = default;
  template <class S, class = msl_impl::if_silent<S, T>, class = msl_impl::if_scalar<S>>
  MSL_INLINE constexpr wide_vec(S s)
      : wide_vec(msl_impl::splat{}, msl_impl::conversion::converted<T>(s)) {}
  template <class S, class = msl_impl::if_on_request<S, T>, int = 0>
  MSL_INLINE explicit constexpr wide_vec(S s)
      : wide_vec(msl_impl::splat{}, msl_impl::conversion::converted<T>(s)) {}
  template <class U, class = msl_impl::if_different<T, U>>
  MSL_INLINE explicit constexpr wide_vec(const vec<U, N>& v) : elements() {
    for (int i = 0; i < N; ++i) elements[i] = msl_impl::conversion::converted<T>(v[i]);
  }
  // Constructs from one scalar per element.
  template <class A, class... Rest, class = metal::enable_if_t<sizeof...(Rest) + 1 == N>,
            class = msl_impl::if_scalar<A>>
  MSL_INLINE constexpr wide_vec(A first, Rest... rest)
      : elements{msl_impl::conversion::converted<T>(first),
                 msl_impl::conversion::converted<T>(rest)...} {}
  MSL_INLINE constexpr wide_vec(msl_impl::splat, T s) : elements() {
    for (int i = 0; i < N; ++i) elements[i] = s;
  }
  MSL_INLINE constexpr T& operator[](size_t i) { return elements[i]; }
  MSL_INLINE constexpr const T& operator[](size_t i) const { return elements[i]; }

#define MSL_WIDE(RESULT, OPERATOR, TERM)                                \
  friend MSL_INLINE constexpr RESULT OPERATOR(const V& a, const V& b) { \
    RESULT result(msl_impl::splat{}, {});                               \
    for (int i = 0; i < N; ++i) result.elements[i] = TERM;              \
    return result;                                                      \
  }
#define MSL_WIDE_ARITHMETIC(op, TERM) \
  MSL_WIDE(V, operator op, T(TERM))   \
  friend MSL_INLINE constexpr V& operator op## = (V & a, const V& b) { return a = a op b; }
#define MSL_WIDE_COMPARISON(op) MSL_WIDE(B, operator op, (a[i] op b[i]))
#define MSL_WIDE_UNARY(RESULT, OPERATOR, TERM)              \
  friend MSL_INLINE constexpr RESULT OPERATOR(const V& a) { \
    RESULT result(msl_impl::splat{}, {});                   \
    for (int i = 0; i < N; ++i) result.elements[i] = TERM;  \
    return result;                                          \
  }
  MSL_WIDE_ARITHMETIC(+, a[i] + b[i])
  MSL_WIDE_ARITHMETIC(-, a[i] - b[i])
  MSL_WIDE_ARITHMETIC(*, a[i] * b[i])
  MSL_WIDE_ARITHMETIC(/, msl_impl::quotient<T>(a[i], b[i]))
  MSL_WIDE_ARITHMETIC(%, msl_impl::residue<T>(a[i], b[i]))
  MSL_WIDE_ARITHMETIC(&, a[i] & b[i])
  MSL_WIDE_ARITHMETIC(|, a[i] | b[i])
  MSL_WIDE_ARITHMETIC(^, a[i] ^ b[i])
  MSL_WIDE_ARITHMETIC(<<, a[i] << msl_impl::shift_count<T>(b[i]))
  MSL_WIDE_ARITHMETIC(>>, a[i] >> msl_impl::shift_count<T>(b[i]))
  MSL_WIDE_COMPARISON(<)
  MSL_WIDE_COMPARISON(>)
  MSL_WIDE_COMPARISON(<=)
  MSL_WIDE_COMPARISON(>=)
  MSL_WIDE_COMPARISON(==)
  MSL_WIDE_COMPARISON(!=)
  MSL_WIDE_COMPARISON(&&)
  MSL_WIDE_COMPARISON(||)
  MSL_WIDE_UNARY(V, operator-, T(-a[i]))
  MSL_WIDE_UNARY(V, operator~, T(~a[i]))
  MSL_WIDE_UNARY(B, operator!, !a[i])
  friend MSL_INLINE constexpr V operator+(const V& a) { return a; }
#undef MSL_WIDE
#undef MSL_WIDE_ARITHMETIC
#undef MSL_WIDE_COMPARISON
#undef MSL_WIDE_UNARY
};

// packed_vec<T, N> has the layout of T[N]; in expressions it is a vec.
#define MSL_PACKED_COMMON(N, ...)                                                            \
  using value_type = T;                                                                      \
  packed_vec() = default;                                                                    \
  MSL_INLINE constexpr packed_vec(const vec<T, N>& v) : __VA_ARGS__ {}                       \
  template <class S, class = msl_impl::if_silent<S, T>, class = msl_impl::if_scalar<S>>      \
  MSL_INLINE constexpr packed_vec(S s) : packed_vec(vec<T, N>(s)) {}                         \
  template <class A, class B, class... C>                                                    \
  MSL_INLINE constexpr packed_vec(const A& a, const B& b, const C&... c)                     \
      : packed_vec(vec<T, N>(a, b, c...)) {}                                                 \
  template <class U, class = msl_impl::if_different<T, U>>                                   \
  MSL_INLINE explicit constexpr packed_vec(const vec<U, N>& v) : packed_vec(vec<T, N>(v)) {} \
  template <int M, bool Packed, int... I>                                                    \
  MSL_INLINE constexpr packed_vec(const swizzle_reference<T, M, Packed, I...>& v)            \
      : packed_vec(v.load()) {}                                                              \
  MSL_INLINE constexpr T& operator[](size_t i) { return msl_impl::at<N>(*this, i); }         \
  MSL_INLINE constexpr const T& operator[](size_t i) const { return msl_impl::at<N>(*this, i); }

template <class T>
struct packed_vec<T, 2> : msl_impl::bases::vector_operators<T, 2> {
  T x, y;
  MSL_PACKED_COMMON(2, x(v.x), y(v.y))
};
template <class T>
struct packed_vec<T, 3> : msl_impl::bases::vector_operators<T, 3> {
  T x, y, z;
  MSL_PACKED_COMMON(3, x(v.x), y(v.y), z(v.z))
};
template <class T>
struct packed_vec<T, 4> : msl_impl::bases::vector_operators<T, 4> {
  T x, y, z, w;
  MSL_PACKED_COMMON(4, x(v.x), y(v.y), z(v.z), w(v.w))
};
#undef MSL_VECTOR_COMMON
#undef MSL_PACKED_COMMON

}  // namespace metal

namespace msl_impl {

template <bool Packed, class T, int N>
using vector_t = metal::conditional_t<Packed, metal::packed_vec<T, N>, metal::vec<T, N>>;

}  // namespace msl_impl

namespace metal {

// The reference v.zyx on the left of an assignment.
template <class T, int N, bool Packed, int... I>
struct swizzle_reference : msl_impl::bases::vector_operators<T, sizeof...(I)> {
  using V = vec<T, sizeof...(I)>;
  msl_impl::vector_t<Packed, T, N>& vector;

  MSL_INLINE constexpr explicit swizzle_reference(msl_impl::vector_t<Packed, T, N>& v)
      : vector(v) {}
  swizzle_reference(const swizzle_reference&) = default;
  MSL_INLINE constexpr V load() const { return V(msl_impl::component<I>(vector)...); }
  MSL_INLINE constexpr operator V() const { return load(); }
  MSL_INLINE constexpr const swizzle_reference& operator=(const V& value) const {
    int i = 0;
    ((msl_impl::component<I>(vector) = value[i++]), ...);
    return *this;
  }
  MSL_INLINE constexpr const swizzle_reference& operator=(const swizzle_reference& other) const {
    return *this = other.load();
  }
#define MSL_COMPOUND(op)                                                                 \
  MSL_INLINE constexpr const swizzle_reference& operator op## = (const V& value) const { \
    return *this = load() op value;                                                      \
  }
  MSL_COMPOUND(+)
  MSL_COMPOUND(-)
  MSL_COMPOUND(*)
  MSL_COMPOUND(/)
  MSL_COMPOUND(%)
  MSL_COMPOUND(&)
  MSL_COMPOUND(|)
  MSL_COMPOUND(^)
  MSL_COMPOUND(<<)
  MSL_COMPOUND(>>)
#undef MSL_COMPOUND
};

// ---- the named types ----------------------------------------------------------------------------

#define MSL_VECTOR_TYPES(T)               \
  typedef vec<T, 2> T##2;                 \
  typedef vec<T, 3> T##3;                 \
  typedef vec<T, 4> T##4;                 \
  typedef packed_vec<T, 2> packed_##T##2; \
  typedef packed_vec<T, 3> packed_##T##3; \
  typedef packed_vec<T, 4> packed_##T##4;
#define MSL_GLOBAL_VECTOR_TYPES(T) \
  using metal::T##2;               \
  using metal::T##3;               \
  using metal::T##4;               \
  using metal::packed_##T##2;      \
  using metal::packed_##T##3;      \
  using metal::packed_##T##4;
#define MSL_FOR_ELEMENT_TYPES(MACRO) \
  MACRO(bool)                        \
  MACRO(char)                        \
  MACRO(uchar)                       \
  MACRO(short)                       \
  MACRO(ushort)                      \
  MACRO(int)                         \
  MACRO(uint)                        \
  MACRO(long)                        \
  MACRO(ulong)                       \
  MACRO(half)                        \
  MACRO(bfloat)                      \
  MACRO(float)
MSL_FOR_ELEMENT_TYPES(MSL_VECTOR_TYPES)
}  // namespace metal
MSL_FOR_ELEMENT_TYPES(MSL_GLOBAL_VECTOR_TYPES)
#undef MSL_VECTOR_TYPES
#undef MSL_GLOBAL_VECTOR_TYPES
#undef MSL_FOR_ELEMENT_TYPES

namespace msl_impl {

// ---- swizzles -----------------------------------------------------------------------------------

// v.xy as a value; with one index, the component itself.
template <int... I, class T, int N>
MSL_INLINE constexpr auto swizzle(const metal::vec<T, N>& v) {
  if constexpr (sizeof...(I) == 1) {
    return T(component<I...>(v));
  } else {
    return metal::vec<T, sizeof...(I)>(component<I>(v)...);
  }
}
template <int... I, class T, int N>
MSL_INLINE constexpr auto swizzle(const metal::packed_vec<T, N>& v) {
  return swizzle<I...>(metal::vec<T, N>(v));
}
template <int... I, class T, int N, bool Packed, int... J>
MSL_INLINE constexpr auto swizzle(const metal::swizzle_reference<T, N, Packed, J...>& v) {
  return swizzle<I...>(v.load());
}

// v.xy as an lvalue.
template <int... I, class T, int N>
MSL_INLINE constexpr decltype(auto) swizzle_ref(metal::vec<T, N>& v) {
  if constexpr (sizeof...(I) == 1) {
    return (component<I...>(v));
  } else {
    return metal::swizzle_reference<T, N, false, I...>(v);
  }
}
template <int... I, class T, int N>
MSL_INLINE constexpr decltype(auto) swizzle_ref(metal::packed_vec<T, N>& v) {
  if constexpr (sizeof...(I) == 1) {
    return (component<I...>(v));
  } else {
    return metal::swizzle_reference<T, N, true, I...>(v);
  }
}

}  // namespace msl_impl

}  // namespace msl
