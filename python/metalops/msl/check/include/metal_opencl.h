// metal_stdlib as clang's OpenCL C++ mode reads it: types, address spaces and overloads. Functions
// are declared and not defined; nothing runs. What Metal and OpenCL call differently is named here,
// not in opencl.py.
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
#pragma OPENCL EXTENSION __cl_clang_variadic_functions : enable
#pragma OPENCL EXTENSION __cl_clang_bitfields : enable

#define device __global
#define threadgroup __local
#define constant __constant
#define thread __private
// Words of OpenCL that are plain names in Metal.
#define generic metal_generic
#define global metal_global
#define local metal_local
#define pipe metal_pipe
#define read_only metal_read_only
#define read_write metal_read_write
#define write_only metal_write_only
#define atomic_bool metal_atomic_bool
#define atomic_float metal_atomic_float
#define atomic_int metal_atomic_int
#define atomic_uint metal_atomic_uint
#define atomic_ulong metal_atomic_ulong

// ---- types

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef ulong uint64_t;
typedef ulong size_t;
typedef long ptrdiff_t;

// Before version 17 clang has no arithmetic on __bf16: a source that mentions bfloat then gets no
// second opinion.
#if __clang_major__ >= 17
typedef __bf16 bfloat;
#define MSL_IF_BFLOAT(...) __VA_ARGS__
#else
#define MSL_IF_BFLOAT(...)
#endif

#define MSL_VECTORS(T)                                         \
  typedef T T##2 __attribute__((ext_vector_type(2)));          \
  typedef T T##3 __attribute__((ext_vector_type(3)));          \
  typedef T T##4 __attribute__((ext_vector_type(4)));          \
  typedef T##2 packed_##T##2;                                  \
  typedef T packed_##T##3 __attribute__((ext_vector_type(3))); \
  typedef T##4 packed_##T##4;
#define MSL_INTEGERS(M) \
  M(char);              \
  M(uchar);             \
  M(short);             \
  M(ushort);            \
  M(int);               \
  M(uint);              \
  M(long);              \
  M(ulong)
#define MSL_NUMBERS(M) \
  MSL_INTEGERS(M);     \
  M(half);             \
  M(float);            \
  MSL_IF_BFLOAT(M(bfloat))
MSL_NUMBERS(MSL_VECTORS)
// Comparisons of vectors are vectors of integers in OpenCL.
typedef int2 bool2;
typedef int3 bool3;
typedef int4 bool4;

namespace metal {

using ::bool2;
using ::bool3;
using ::bool4;
#define MSL_USING(T)     \
  using ::T##2;          \
  using ::T##3;          \
  using ::T##4;          \
  using ::packed_##T##2; \
  using ::packed_##T##3; \
  using ::packed_##T##4;
MSL_NUMBERS(MSL_USING)
MSL_IF_BFLOAT(using ::bfloat;)
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
typedef decltype(nullptr) nullptr_t;
using ::ptrdiff_t;
using ::size_t;
using ::uchar;
using ::uint;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;
using ::ulong;
using ::ushort;

// ---- traits

template <typename T, T V>
struct integral_constant {
  static constexpr __constant T value = V;
  constexpr operator T() const { return V; }
};
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <bool B>
using bool_constant = integral_constant<bool, B>;

template <bool B, typename T = void>
struct enable_if {};
template <typename T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool B, typename T = void>
using enable_if_t = typename enable_if<B, T>::type;
template <bool B, typename T, typename F>
struct conditional {
  typedef T type;
};
template <typename T, typename F>
struct conditional<false, T, F> {
  typedef F type;
};
template <bool B, typename T, typename F>
using conditional_t = typename conditional<B, T, F>::type;
template <typename T>
T declval();

// Not the compiler's own: clang 15 has none of them.
template <typename T>
struct remove_const {
  typedef T type;
};
template <typename T>
struct remove_const<const T> {
  typedef T type;
};
template <typename T>
struct remove_volatile {
  typedef T type;
};
template <typename T>
struct remove_volatile<volatile T> {
  typedef T type;
};
template <typename T>
struct remove_reference {
  typedef T type;
};
template <typename T>
struct remove_reference<T&> {
  typedef T type;
};
template <typename T>
struct remove_reference<T&&> {
  typedef T type;
};
template <typename T>
struct remove_pointer {
  typedef T type;
};
template <typename T>
struct remove_pointer<T*> {
  typedef T type;
};
template <typename T>
using remove_const_t = typename remove_const<T>::type;
template <typename T>
using remove_volatile_t = typename remove_volatile<T>::type;
template <typename T>
using remove_reference_t = typename remove_reference<T>::type;
template <typename T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <typename T>
struct remove_cv {
  typedef remove_const_t<remove_volatile_t<T>> type;
};
template <typename T>
using remove_cv_t = typename remove_cv<T>::type;
template <typename T>
struct decay {
  typedef remove_cv_t<remove_reference_t<T>> type;
};
template <typename T>
using decay_t = typename decay<T>::type;

// The component type and count of a vector; traits of scalars apply to its components.
template <typename T>
struct msl_components {
  typedef T type;
  static constexpr __constant int count = 1;
};
#define MSL_COMPONENTS_OF(T, N)                \
  template <>                                  \
  struct msl_components<T##N> {                \
    typedef T type;                            \
    static constexpr __constant int count = N; \
  };
#define MSL_COMPONENTS(T)  \
  MSL_COMPONENTS_OF(T, 2); \
  MSL_COMPONENTS_OF(T, 3); \
  MSL_COMPONENTS_OF(T, 4)
MSL_NUMBERS(MSL_COMPONENTS)
template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));
template <typename T, int N>
using packed_vec = vec<T, N>;
template <typename T>
using msl_component = typename msl_components<remove_cv_t<T>>::type;

template <typename T, typename U>
constexpr __constant bool is_same_v = __is_same(T, U);
template <typename T>
constexpr __constant bool is_floating_point_v =
    __is_same(msl_component<T>, float) || __is_same(msl_component<T>, half)
                                              MSL_IF_BFLOAT(|| __is_same(msl_component<T>, bfloat));
template <typename T>
constexpr __constant bool is_integral_v = __is_integral(msl_component<T>);
template <typename T>
constexpr __constant bool is_arithmetic_v = is_floating_point_v<T> || is_integral_v<T>;
template <typename T>
constexpr __constant bool is_vector_v = msl_components<remove_cv_t<T>>::count > 1;
template <typename T>
constexpr __constant bool is_scalar_v = is_arithmetic_v<T> && !is_vector_v<T>;
template <typename T>
constexpr __constant bool is_unsigned_v = __is_unsigned(msl_component<T>);
template <typename T>
constexpr __constant bool is_signed_v = is_arithmetic_v<T> && !is_unsigned_v<T>;
template <typename T>
constexpr __constant bool is_void_v = __is_void(T);
template <typename T>
constexpr __constant bool is_enum_v = __is_enum(T);
template <typename T>
constexpr __constant bool is_class_v = __is_class(T);
template <typename T>
constexpr __constant bool is_pointer_v = __is_pointer(T);
template <typename T>
constexpr __constant bool is_const_v = __is_const(T);
template <typename From, typename To>
constexpr __constant bool is_convertible_v = __is_convertible(From, To);
template <typename Base, typename Derived>
constexpr __constant bool is_base_of_v = __is_base_of(Base, Derived);
#define MSL_TRAIT(NAME) \
  template <typename T> \
  struct NAME : bool_constant<NAME##_v<T>> {};
MSL_TRAIT(is_floating_point)
MSL_TRAIT(is_integral)
MSL_TRAIT(is_arithmetic)
MSL_TRAIT(is_vector)
MSL_TRAIT(is_scalar)
MSL_TRAIT(is_unsigned)
MSL_TRAIT(is_signed)
MSL_TRAIT(is_void)
MSL_TRAIT(is_enum)
MSL_TRAIT(is_class)
MSL_TRAIT(is_pointer)
MSL_TRAIT(is_const)
template <typename T, typename U>
struct is_same : bool_constant<__is_same(T, U)> {};
template <typename From, typename To>
struct is_convertible : bool_constant<__is_convertible(From, To)> {};
template <typename Base, typename Derived>
struct is_base_of : bool_constant<__is_base_of(Base, Derived)> {};

template <typename T>
struct make_unsigned;
template <typename T>
struct make_signed;
#define MSL_SIGNS(S, U)     \
  template <>               \
  struct make_unsigned<S> { \
    typedef U type;         \
  };                        \
  template <>               \
  struct make_unsigned<U> { \
    typedef U type;         \
  };                        \
  template <>               \
  struct make_signed<S> {   \
    typedef S type;         \
  };                        \
  template <>               \
  struct make_signed<U> {   \
    typedef S type;         \
  };
MSL_SIGNS(char, uchar)
MSL_SIGNS(short, ushort)
MSL_SIGNS(int, uint)
MSL_SIGNS(long, ulong)
template <typename T>
using make_unsigned_t = typename make_unsigned<T>::type;
template <typename T>
using make_signed_t = typename make_signed<T>::type;

template <typename T>
struct numeric_limits {
  static constexpr __constant bool is_specialized = is_arithmetic_v<T>;
  static constexpr __constant bool is_signed = is_signed_v<T>;
  static constexpr __constant bool is_integer = is_integral_v<T>;
  static constexpr __constant bool is_exact = is_integral_v<T>;
  static constexpr __constant bool has_infinity = is_floating_point_v<T>;
  static constexpr __constant bool has_quiet_NaN = is_floating_point_v<T>;
  static constexpr __constant int digits = 24;
  static constexpr __constant int digits10 = 6;
  static constexpr __constant int max_digits10 = 9;
  static constexpr __constant int radix = 2;
  static constexpr __constant int max_exponent = 128;
  static constexpr __constant int min_exponent = -125;
  static constexpr T min() { return T(1); }
  static constexpr T max() { return T(1); }
  static constexpr T lowest() { return T(1); }
  static constexpr T epsilon() { return T(1); }
  static constexpr T infinity() { return T(1); }
  static constexpr T quiet_NaN() { return T(1); }
  static constexpr T signaling_NaN() { return T(1); }
  static constexpr T denorm_min() { return T(1); }
};

// ---- values

// The `T4(...)` of Metal, which OpenCL writes `(T4)(...)`: from a number, from components and
// parts, from a vector of as many components.
template <typename T, typename... Rest>
constexpr int msl_count() {
  if constexpr (sizeof...(Rest) == 0) {
    return msl_components<T>::count;
  } else {
    return msl_components<T>::count + msl_count<Rest...>();
  }
}
template <typename V>
constexpr V make() {
  return V{};
}
template <typename V, typename T, typename... Rest>
constexpr V make(T, Rest...) {
  constexpr int wanted = msl_components<V>::count;
  constexpr int given = msl_count<T, Rest...>();
  static_assert(given == wanted || (given == 1 && sizeof...(Rest) == 0),
                "a vector is made of one number or of as many as it has components");
  return V{};
}

template <typename T, size_t N>
struct array {
  T msl_elements[N == 0 ? 1 : N];
  __private T& operator[](size_t i) __private& { return msl_elements[i]; }
  const __private T& operator[](size_t i) const __private& { return msl_elements[i]; }
  __global T& operator[](size_t i) __global& { return msl_elements[i]; }
  const __global T& operator[](size_t i) const __global& { return msl_elements[i]; }
  __local T& operator[](size_t i) __local& { return msl_elements[i]; }
  const __local T& operator[](size_t i) const __local& { return msl_elements[i]; }
  const __constant T& operator[](size_t i) const __constant& { return msl_elements[i]; }
  // A temporary could convert to an object in any address space.
  T operator[](size_t i) && { return msl_elements[i]; }
  constexpr size_t size() const { return N; }
  constexpr size_t size() const __constant { return N; }
  __private T* data() __private { return msl_elements; }
  const __private T* data() const __private { return msl_elements; }
};

// ---- math

// M(function, type, type of integers with as many components)
#define MSL_OF_FLOAT(M, F) \
  M(F, float, int);        \
  M(F, float2, int2);      \
  M(F, float3, int3);      \
  M(F, float4, int4)
#define MSL_OF_FLOATS(M, F) \
  MSL_OF_FLOAT(M, F);       \
  M(F, half, int);          \
  M(F, half2, int2);        \
  M(F, half3, int3);        \
  M(F, half4, int4);        \
  MSL_IF_BFLOAT(M(F, bfloat, int); M(F, bfloat2, int2); M(F, bfloat3, int3); M(F, bfloat4, int4))
#define MSL_OF_INTEGER(M, F, T) \
  M(F, T, T);                   \
  M(F, T##2, T##2);             \
  M(F, T##3, T##3);             \
  M(F, T##4, T##4)
#define MSL_OF_SMALL_INTEGERS(M, F) \
  MSL_OF_INTEGER(M, F, char);       \
  MSL_OF_INTEGER(M, F, uchar);      \
  MSL_OF_INTEGER(M, F, short);      \
  MSL_OF_INTEGER(M, F, ushort);     \
  MSL_OF_INTEGER(M, F, int);        \
  MSL_OF_INTEGER(M, F, uint)
#define MSL_OF_INTEGERS(M, F)  \
  MSL_OF_SMALL_INTEGERS(M, F); \
  MSL_OF_INTEGER(M, F, long);  \
  MSL_OF_INTEGER(M, F, ulong)
#define MSL_OF_NUMBERS(M, F) \
  MSL_OF_FLOATS(M, F);       \
  MSL_OF_INTEGERS(M, F)
#define MSL_1(F, T, I) \
  constexpr T F(T x) { return x; }
#define MSL_2(F, T, I) \
  constexpr T F(T x, T) { return x; }
#define MSL_3(F, T, I) \
  constexpr T F(T x, T, T) { return x; }
#define MSL_OUT(F, T, I) T F(T, __private T&);
#define MSL_OUT_INTEGER(F, T, I) T F(T, __private I&);
#define MSL_INTEGER_OF(F, T, I) I F(T);
#define MSL_WITH_INTEGER(F, T, I) T F(T, I);
#define MSL_UNARY(OF)  \
  OF(MSL_1, acos);     \
  OF(MSL_1, acosh);    \
  OF(MSL_1, asin);     \
  OF(MSL_1, asinh);    \
  OF(MSL_1, atan);     \
  OF(MSL_1, atanh);    \
  OF(MSL_1, ceil);     \
  OF(MSL_1, cos);      \
  OF(MSL_1, cosh);     \
  OF(MSL_1, cospi);    \
  OF(MSL_1, exp);      \
  OF(MSL_1, exp2);     \
  OF(MSL_1, exp10);    \
  OF(MSL_1, fabs);     \
  OF(MSL_1, floor);    \
  OF(MSL_1, fract);    \
  OF(MSL_1, log);      \
  OF(MSL_1, log2);     \
  OF(MSL_1, log10);    \
  OF(MSL_1, rint);     \
  OF(MSL_1, round);    \
  OF(MSL_1, rsqrt);    \
  OF(MSL_1, sign);     \
  OF(MSL_1, saturate); \
  OF(MSL_1, sin);      \
  OF(MSL_1, sinh);     \
  OF(MSL_1, sinpi);    \
  OF(MSL_1, sqrt);     \
  OF(MSL_1, tan);      \
  OF(MSL_1, tanh);     \
  OF(MSL_1, tanpi);    \
  OF(MSL_1, trunc)
#define MSL_BINARY(OF)  \
  OF(MSL_2, atan2);     \
  OF(MSL_2, copysign);  \
  OF(MSL_2, divide);    \
  OF(MSL_2, fdim);      \
  OF(MSL_2, fmax);      \
  OF(MSL_2, fmin);      \
  OF(MSL_2, fmod);      \
  OF(MSL_2, nextafter); \
  OF(MSL_2, pow);       \
  OF(MSL_2, powr);      \
  OF(MSL_2, step)
#define MSL_MATH(OF)           \
  MSL_UNARY(OF);               \
  MSL_BINARY(OF);              \
  OF(MSL_3, fma);              \
  OF(MSL_3, fmax3);            \
  OF(MSL_3, fmin3);            \
  OF(MSL_3, mix);              \
  OF(MSL_3, smoothstep);       \
  OF(MSL_3, fmedian3);         \
  OF(MSL_OUT, modf);           \
  OF(MSL_OUT, sincos);         \
  OF(MSL_OUT_INTEGER, frexp);  \
  OF(MSL_WITH_INTEGER, ldexp); \
  OF(MSL_INTEGER_OF, ilogb)
MSL_MATH(MSL_OF_FLOATS)
namespace precise {
MSL_MATH(MSL_OF_FLOAT)
}
namespace fast {
MSL_MATH(MSL_OF_FLOAT)
}
MSL_OF_NUMBERS(MSL_1, abs)
MSL_OF_NUMBERS(MSL_2, min)
MSL_OF_NUMBERS(MSL_2, max)
MSL_OF_NUMBERS(MSL_3, clamp)
MSL_OF_NUMBERS(MSL_3, min3)
MSL_OF_NUMBERS(MSL_3, max3)
MSL_OF_NUMBERS(MSL_3, median3)
MSL_OF_INTEGERS(MSL_1, clz)
MSL_OF_INTEGERS(MSL_1, ctz)
MSL_OF_INTEGERS(MSL_1, popcount)
MSL_OF_INTEGERS(MSL_1, reverse_bits)
MSL_OF_INTEGERS(MSL_2, absdiff)
MSL_OF_INTEGERS(MSL_2, addsat)
MSL_OF_INTEGERS(MSL_2, hadd)
MSL_OF_INTEGERS(MSL_2, mulhi)
MSL_OF_INTEGERS(MSL_2, rhadd)
MSL_OF_INTEGERS(MSL_2, rotate)
MSL_OF_INTEGERS(MSL_2, subsat)
MSL_OF_INTEGERS(MSL_3, madhi)
MSL_OF_INTEGERS(MSL_3, madsat)
MSL_OF_INTEGER(MSL_2, mul24, int)
MSL_OF_INTEGER(MSL_2, mul24, uint)
MSL_OF_INTEGER(MSL_3, mad24, int)
MSL_OF_INTEGER(MSL_3, mad24, uint)
#define MSL_SHIFT_OUT(F, T, I) T F(T, uint, uint);
MSL_OF_INTEGERS(MSL_SHIFT_OUT, extract_bits)
#define MSL_INSERT(F, T, I) T F(T, T, uint, uint);
MSL_OF_INTEGERS(MSL_INSERT, insert_bits)
#define MSL_PACK(T)                       \
  uint pack_##T##_to_unorm4x8(T##4);      \
  uint pack_##T##_to_snorm4x8(T##4);      \
  uint pack_##T##_to_srgb_unorm4x8(T##4); \
  uint pack_##T##_to_unorm2x16(T##2);     \
  uint pack_##T##_to_snorm2x16(T##2);     \
  uint pack_##T##_to_unorm10a2(T##4);     \
  ushort pack_##T##_to_unorm565(T##3);    \
  T##4 unpack_unorm4x8_to_##T(uint);      \
  T##4 unpack_snorm4x8_to_##T(uint);      \
  T##4 unpack_unorm4x8_srgb_to_##T(uint); \
  T##2 unpack_unorm2x16_to_##T(uint);     \
  T##2 unpack_snorm2x16_to_##T(uint);     \
  T##4 unpack_unorm10a2_to_##T(uint);     \
  T##3 unpack_unorm565_to_##T(ushort);
MSL_PACK(float)
MSL_PACK(half)

// Predicates: of a vector, a vector of what its comparisons are.
#define MSL_PREDICATE_OF(F, T, I) \
  bool F(T);                      \
  I##2 F(T##2);                   \
  I##3 F(T##3);                   \
  I##4 F(T##4);
#define MSL_PREDICATE(F)           \
  MSL_PREDICATE_OF(F, float, int); \
  MSL_PREDICATE_OF(F, half, int);  \
  MSL_IF_BFLOAT(MSL_PREDICATE_OF(F, bfloat, int))
MSL_PREDICATE(isfinite)
MSL_PREDICATE(isinf)
MSL_PREDICATE(isnan)
MSL_PREDICATE(isnormal)
MSL_PREDICATE(signbit)
#define MSL_PREDICATE2_OF(F, T, I) \
  bool F(T, T);                    \
  I##2 F(T##2, T##2);              \
  I##3 F(T##3, T##3);              \
  I##4 F(T##4, T##4);
#define MSL_PREDICATE2(F)           \
  MSL_PREDICATE2_OF(F, float, int); \
  MSL_PREDICATE2_OF(F, half, int);  \
  MSL_IF_BFLOAT(MSL_PREDICATE2_OF(F, bfloat, int))
MSL_PREDICATE2(isordered)
MSL_PREDICATE2(isunordered)
#define MSL_ANY_ALL(T) \
  bool any(T##2);      \
  bool any(T##3);      \
  bool any(T##4);      \
  bool all(T##2);      \
  bool all(T##3);      \
  bool all(T##4);
MSL_ANY_ALL(char)
MSL_ANY_ALL(short)
MSL_ANY_ALL(int)
MSL_ANY_ALL(long)
bool any(bool);
bool all(bool);
// The last argument is what comparisons of such vectors are, or a vector of bool.
#define MSL_SELECT_OF(T, I)                      \
  constexpr T select(T x, T, bool) { return x; } \
  T##2 select(T##2, T##2, bool);                 \
  T##2 select(T##2, T##2, I##2);                 \
  T##3 select(T##3, T##3, bool);                 \
  T##3 select(T##3, T##3, I##3);                 \
  T##4 select(T##4, T##4, bool);                 \
  T##4 select(T##4, T##4, I##4);
#define MSL_SELECT_BY_BOOL(T)    \
  T##2 select(T##2, T##2, int2); \
  T##3 select(T##3, T##3, int3); \
  T##4 select(T##4, T##4, int4);
#define MSL_SELECT_OF_SIZE(T, I) \
  MSL_SELECT_OF(T, I);           \
  MSL_SELECT_BY_BOOL(T)
MSL_SELECT_OF_SIZE(char, char)
MSL_SELECT_OF_SIZE(uchar, char)
MSL_SELECT_OF_SIZE(short, short)
MSL_SELECT_OF_SIZE(ushort, short)
MSL_SELECT_OF_SIZE(half, short)
MSL_IF_BFLOAT(MSL_SELECT_OF_SIZE(bfloat, short))
MSL_SELECT_OF(int, int)
MSL_SELECT_OF(uint, int)
MSL_SELECT_OF(float, int)
MSL_SELECT_OF_SIZE(long, long)
MSL_SELECT_OF_SIZE(ulong, long)
bool select(bool, bool, bool);

#define MSL_GEOMETRY_OF(T, V) \
  T dot(V, V);                \
  T length(V);                \
  T length_squared(V);        \
  T distance(V, V);           \
  T distance_squared(V, V);   \
  V normalize(V);             \
  V reflect(V, V);            \
  V faceforward(V, V, V);
#define MSL_GEOMETRY(T)     \
  MSL_GEOMETRY_OF(T, T##2); \
  MSL_GEOMETRY_OF(T, T##3); \
  MSL_GEOMETRY_OF(T, T##4) T##3 cross(T##3, T##3);
MSL_GEOMETRY(half)
MSL_GEOMETRY(float)
MSL_IF_BFLOAT(MSL_GEOMETRY(bfloat))

// ---- matrices

// An object in constant memory has constructors of its own.
#define MSL_MATRIX_CONSTRUCTORS(SPACE)                                                            \
  explicit constexpr matrix(T) SPACE : columns{} {}                                               \
  template <typename... V, typename = enable_if_t<(sizeof...(V) == C || sizeof...(V) == C * R) && \
                                                  msl_count<V...>() == C * R>>                    \
  constexpr matrix(V...) SPACE : columns{} {}                                                     \
  template <typename U, typename = enable_if_t<!__is_same(T, U)>>                                 \
  explicit constexpr matrix(matrix<U, C, R>) SPACE : columns{} {}
template <typename T, int C, int R>
struct matrix {
  vec<T, R> columns[C];
  matrix() = default;
  constexpr matrix() __constant : columns{} {}
  constexpr matrix(const matrix&) = default;
  constexpr matrix(const __constant matrix&) : columns{} {}
  constexpr matrix(const __constant matrix&) __constant : columns{} {}
  MSL_MATRIX_CONSTRUCTORS()
  MSL_MATRIX_CONSTRUCTORS(__constant)
  matrix& operator=(const matrix&) = default;
  matrix& operator=(const __constant matrix&);
  matrix& operator+=(matrix);
  matrix& operator-=(matrix);
  template <typename U>
  matrix& operator*=(U);
  __private vec<T, R>& operator[](size_t c) __private& { return columns[c]; }
  const __private vec<T, R>& operator[](size_t c) const __private& { return columns[c]; }
  __global vec<T, R>& operator[](size_t c) __global& { return columns[c]; }
  const __global vec<T, R>& operator[](size_t c) const __global& { return columns[c]; }
  __local vec<T, R>& operator[](size_t c) __local& { return columns[c]; }
  const __local vec<T, R>& operator[](size_t c) const __local& { return columns[c]; }
  const __constant vec<T, R>& operator[](size_t c) const __constant& { return columns[c]; }
  __generic vec<T, R>& operator[](size_t c) __generic& { return columns[c]; }
  const __generic vec<T, R>& operator[](size_t c) const __generic& { return columns[c]; }
  vec<T, R> operator[](size_t c) && { return columns[c]; }
};
template <typename T, int C, int R>
constexpr matrix<T, C, R> operator-(matrix<T, C, R> a) {
  return a;
}
template <typename T, int C, int R>
constexpr matrix<T, C, R> operator+(matrix<T, C, R> a, matrix<T, C, R>) {
  return a;
}
template <typename T, int C, int R>
constexpr matrix<T, C, R> operator-(matrix<T, C, R> a, matrix<T, C, R>) {
  return a;
}
template <typename T, int C, int R, typename S, typename = enable_if_t<is_scalar_v<S>>>
constexpr matrix<T, C, R> operator*(matrix<T, C, R> a, S) {
  return a;
}
template <typename T, int C, int R, typename S, typename = enable_if_t<is_scalar_v<S>>>
constexpr matrix<T, C, R> operator*(S, matrix<T, C, R> a) {
  return a;
}
template <typename T, int C, int R, typename V,
          typename = enable_if_t<is_vector_v<V> && msl_components<V>::count == C>>
constexpr vec<T, R> operator*(matrix<T, C, R> m, V) {
  return m.columns[0];
}
template <typename V, typename T, int C, int R,
          typename = enable_if_t<is_vector_v<V> && msl_components<V>::count == R>>
constexpr vec<T, C> operator*(V, matrix<T, C, R>) {
  return vec<T, C>{};
}
template <typename T, int C, int R, int K>
constexpr matrix<T, C, R> operator*(matrix<T, K, R>, matrix<T, C, K>) {
  return matrix<T, C, R>(T(0));
}
template <typename T, int C, int R>
bool operator==(matrix<T, C, R>, matrix<T, C, R>);
template <typename T, int C, int R>
bool operator!=(matrix<T, C, R>, matrix<T, C, R>);
template <typename T, int C, int R>
matrix<T, R, C> transpose(matrix<T, C, R>);
template <typename T, int N>
T determinant(matrix<T, N, N>);
#define MSL_MATRICES(T)           \
  typedef matrix<T, 2, 2> T##2x2; \
  typedef matrix<T, 2, 3> T##2x3; \
  typedef matrix<T, 2, 4> T##2x4; \
  typedef matrix<T, 3, 2> T##3x2; \
  typedef matrix<T, 3, 3> T##3x3; \
  typedef matrix<T, 3, 4> T##3x4; \
  typedef matrix<T, 4, 2> T##4x2; \
  typedef matrix<T, 4, 3> T##4x3; \
  typedef matrix<T, 4, 4> T##4x4;
MSL_MATRICES(half)
MSL_MATRICES(float)

template <typename T, int C = 8, int R = 8>
struct simdgroup_matrix {
  typedef T value_type;
  typedef vec<T, 2> storage_type;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T);
  __private storage_type& thread_elements();
  const __private storage_type& thread_elements() const;
  storage_type msl_elements;
};
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
MSL_IF_BFLOAT(typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;)
template <typename T, int C, int R>
simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T);
template <typename T, int N>
simdgroup_matrix<T, N, N> make_filled_simdgroup_matrix(T);
template <typename T, int C, int R>
simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(T);
template <typename T, int N>
simdgroup_matrix<T, N, N> make_diagonal_simdgroup_matrix(T);
#define MSL_SIMDGROUP_MEMORY(SPACE)                                                               \
  template <typename T, typename U>                                                               \
  void simdgroup_load(__private simdgroup_matrix<T, 8, 8>&, const volatile SPACE U*, ulong = 8,   \
                      ulong2 = 0, bool = false);                                                  \
  template <typename T, typename U>                                                               \
  void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const volatile SPACE U*, ulong = 8, ulong2 = 0, \
                      bool = false);                                                              \
  template <typename T, typename U>                                                               \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, volatile SPACE U*, ulong = 8, ulong2 = 0,       \
                       bool = false);
MSL_SIMDGROUP_MEMORY(__global)
MSL_SIMDGROUP_MEMORY(__local)
// RESULT: the space of a matrix in thread memory, or of a member in a method.
#define MSL_SIMDGROUP_PRODUCTS(RESULT)                                                             \
  template <typename D, typename A, typename B, typename C>                                        \
  void simdgroup_multiply_accumulate(RESULT simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>, \
                                     simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);        \
  template <typename D, typename A, typename B>                                                    \
  void simdgroup_multiply(RESULT simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>,            \
                          simdgroup_matrix<B, 8, 8>);
MSL_SIMDGROUP_PRODUCTS(__private)
MSL_SIMDGROUP_PRODUCTS(__generic)
template <typename A, typename B>
simdgroup_matrix<A, 8, 8> operator*(simdgroup_matrix<A, 8, 8>, simdgroup_matrix<B, 8, 8>);

// ---- threads

enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
constexpr mem_flags operator&(mem_flags a, mem_flags b) { return mem_flags(uint(a) & uint(b)); }
enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst
};
enum thread_scope : int {
  thread_scope_thread = 0,
  thread_scope_threadgroup = 1,
  thread_scope_device = 2,
  thread_scope_simdgroup = 4,
};
void threadgroup_barrier(mem_flags);
void threadgroup_barrier(mem_flags, thread_scope);
void simdgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags, thread_scope);
void atomic_thread_fence(mem_flags, memory_order);
void atomic_thread_fence(mem_flags, memory_order, thread_scope);

struct simd_vote {
  typedef ulong vote_t;
  explicit constexpr simd_vote(vote_t bits = 0) : msl_bits(bits) {}
  explicit constexpr operator vote_t() const { return msl_bits; }
  bool all() const;
  bool any() const;
  vote_t msl_bits;
};
struct quad_vote {
  typedef uint vote_t;
  explicit constexpr quad_vote(vote_t bits = 0) : msl_bits(bits) {}
  explicit constexpr operator vote_t() const { return msl_bits; }
  bool all() const;
  bool any() const;
  vote_t msl_bits;
};
simd_vote simd_active_threads_mask();
simd_vote simd_ballot(bool);
bool simd_all(bool);
bool simd_any(bool);
bool simd_is_first();
bool simd_is_helper_thread();
quad_vote quad_active_threads_mask();
quad_vote quad_ballot(bool);
bool quad_all(bool);
bool quad_any(bool);
bool quad_is_first();
#define MSL_LANES(GROUP, T)                              \
  T GROUP##_broadcast(T, ushort);                        \
  T GROUP##_broadcast_first(T);                          \
  T GROUP##_max(T);                                      \
  T GROUP##_min(T);                                      \
  T GROUP##_product(T);                                  \
  T GROUP##_sum(T);                                      \
  T GROUP##_prefix_exclusive_product(T);                 \
  T GROUP##_prefix_exclusive_sum(T);                     \
  T GROUP##_prefix_inclusive_product(T);                 \
  T GROUP##_prefix_inclusive_sum(T);                     \
  T GROUP##_shuffle(T, ushort);                          \
  T GROUP##_shuffle_and_fill_down(T, T, ushort);         \
  T GROUP##_shuffle_and_fill_down(T, T, ushort, ushort); \
  T GROUP##_shuffle_and_fill_up(T, T, ushort);           \
  T GROUP##_shuffle_and_fill_up(T, T, ushort, ushort);   \
  T GROUP##_shuffle_down(T, ushort);                     \
  T GROUP##_shuffle_rotate_down(T, ushort);              \
  T GROUP##_shuffle_rotate_up(T, ushort);                \
  T GROUP##_shuffle_up(T, ushort);                       \
  T GROUP##_shuffle_xor(T, ushort);
#define MSL_BITS(GROUP, T) \
  T GROUP##_and(T);        \
  T GROUP##_or(T);         \
  T GROUP##_xor(T);
#define MSL_LANE_FUNCTIONS(F, T, I) \
  MSL_LANES(simd, T);               \
  MSL_LANES(quad, T)
#define MSL_LANE_BITS(F, T, I) \
  MSL_BITS(simd, T);           \
  MSL_BITS(quad, T)
MSL_OF_FLOATS(MSL_LANE_FUNCTIONS, )
MSL_OF_SMALL_INTEGERS(MSL_LANE_FUNCTIONS, )
MSL_OF_SMALL_INTEGERS(MSL_LANE_BITS, )

// ---- atomics

template <typename T>
struct atomic {
  T msl_value;
};
template <typename T>
using _atomic = atomic<T>;
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

// A parameter that does not tell the template's argument.
template <typename T>
struct msl_identity {
  typedef T type;
};
template <typename T>
using msl_operand = typename msl_identity<T>::type;
#define MSL_ATOMIC_OPERATION(SPACE, NAME) \
  template <typename T>                   \
  T atomic_##NAME##_explicit(volatile SPACE atomic<T>*, msl_operand<T>, memory_order);
#define MSL_ATOMICS(SPACE)                                                                \
  template <typename T>                                                                   \
  T atomic_load_explicit(const volatile SPACE atomic<T>*, memory_order);                  \
  template <typename T>                                                                   \
  void atomic_store_explicit(volatile SPACE atomic<T>*, msl_operand<T>, memory_order);    \
  template <typename T>                                                                   \
  void atomic_max_explicit(volatile SPACE atomic<T>*, msl_operand<T>, memory_order);      \
  template <typename T>                                                                   \
  void atomic_min_explicit(volatile SPACE atomic<T>*, msl_operand<T>, memory_order);      \
  template <typename T>                                                                   \
  bool atomic_compare_exchange_weak_explicit(volatile SPACE atomic<T>*, __private T*,     \
                                             msl_operand<T>, memory_order, memory_order); \
  MSL_ATOMIC_OPERATION(SPACE, exchange);                                                  \
  MSL_ATOMIC_OPERATION(SPACE, fetch_add);                                                 \
  MSL_ATOMIC_OPERATION(SPACE, fetch_and);                                                 \
  MSL_ATOMIC_OPERATION(SPACE, fetch_max);                                                 \
  MSL_ATOMIC_OPERATION(SPACE, fetch_min);                                                 \
  MSL_ATOMIC_OPERATION(SPACE, fetch_or);                                                  \
  MSL_ATOMIC_OPERATION(SPACE, fetch_sub);                                                 \
  MSL_ATOMIC_OPERATION(SPACE, fetch_xor)
MSL_ATOMICS(__global)
MSL_ATOMICS(__local)

namespace raytracing {}
}  // namespace metal

#define MSL_GLOBAL_MATRICES(T) \
  using metal::T##2x2;         \
  using metal::T##2x3;         \
  using metal::T##2x4;         \
  using metal::T##3x2;         \
  using metal::T##3x3;         \
  using metal::T##3x4;         \
  using metal::T##4x2;         \
  using metal::T##4x3;         \
  using metal::T##4x4;
MSL_GLOBAL_MATRICES(half)
MSL_GLOBAL_MATRICES(float)

template <typename T, typename U>
constexpr T as_type(U value) {
  static_assert(sizeof(T) == sizeof(U), "as_type takes a type of the same size");
  return __builtin_bit_cast(T, value);
}
template <typename T>
bool is_function_constant_defined(T);
namespace metal {
using ::as_type;
}
