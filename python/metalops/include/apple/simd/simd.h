// Apple's vector and matrix types for programs on the host: the types of every width, the functions
// on vectors of float and double that graphics programs use, and products and transposes of
// matrices. Memory is laid out as Metal's types of the same names: a vector of three has the size
// and alignment of one of four.
//
// They are clang's vectors, whose operators and swizzles belong to the language.
#pragma once

#ifndef __clang__
#error "Apple's simd types are clang's vectors: compile this source with clang"
#endif

#ifdef __cplusplus
#include <cmath>
#define METALOPS_SIMD static inline __attribute__((always_inline))
#else
#include <math.h>
#include <stdbool.h>
#define METALOPS_SIMD static inline __attribute__((always_inline, overloadable))
#endif

#define METALOPS_SIMD_TYPES(TYPE, NAME)                                  \
  typedef TYPE simd_##NAME##1;                                           \
  typedef __attribute__((__ext_vector_type__(2))) TYPE simd_##NAME##2;   \
  typedef __attribute__((__ext_vector_type__(3))) TYPE simd_##NAME##3;   \
  typedef __attribute__((__ext_vector_type__(4))) TYPE simd_##NAME##4;   \
  typedef __attribute__((__ext_vector_type__(8))) TYPE simd_##NAME##8;   \
  typedef __attribute__((__ext_vector_type__(16))) TYPE simd_##NAME##16; \
  typedef simd_##NAME##2 vector_##NAME##2;                               \
  typedef simd_##NAME##3 vector_##NAME##3;                               \
  typedef simd_##NAME##4 vector_##NAME##4;                               \
  typedef simd_##NAME##8 vector_##NAME##8;                               \
  typedef simd_##NAME##16 vector_##NAME##16;

METALOPS_SIMD_TYPES(char, char)
METALOPS_SIMD_TYPES(unsigned char, uchar)
METALOPS_SIMD_TYPES(short, short)
METALOPS_SIMD_TYPES(unsigned short, ushort)
METALOPS_SIMD_TYPES(int, int)
METALOPS_SIMD_TYPES(unsigned int, uint)
METALOPS_SIMD_TYPES(long, long)
METALOPS_SIMD_TYPES(unsigned long, ulong)
METALOPS_SIMD_TYPES(float, float)
METALOPS_SIMD_TYPES(double, double)
#ifdef __FLT16_MANT_DIG__
METALOPS_SIMD_TYPES(_Float16, half)
#endif
#undef METALOPS_SIMD_TYPES

typedef bool simd_bool;

// simd_make_TYPEn(), of its elements, or of a vector and the rest.
#define METALOPS_SIMD_MAKE(T, E)                                                               \
  METALOPS_SIMD simd_##T##2 simd_make_##T##2(E x, E y) { return (simd_##T##2){x, y}; }         \
  METALOPS_SIMD simd_##T##2 simd_make_##T##2(simd_##T##3 v) { return v.xy; }                   \
  METALOPS_SIMD simd_##T##2 simd_make_##T##2(simd_##T##4 v) { return v.xy; }                   \
  METALOPS_SIMD simd_##T##3 simd_make_##T##3(E x, E y, E z) { return (simd_##T##3){x, y, z}; } \
  METALOPS_SIMD simd_##T##3 simd_make_##T##3(simd_##T##2 v, E z) {                             \
    return (simd_##T##3){v.x, v.y, z};                                                         \
  }                                                                                            \
  METALOPS_SIMD simd_##T##3 simd_make_##T##3(simd_##T##4 v) { return v.xyz; }                  \
  METALOPS_SIMD simd_##T##4 simd_make_##T##4(E x, E y, E z, E w) {                             \
    return (simd_##T##4){x, y, z, w};                                                          \
  }                                                                                            \
  METALOPS_SIMD simd_##T##4 simd_make_##T##4(simd_##T##3 v, E w) {                             \
    return (simd_##T##4){v.x, v.y, v.z, w};                                                    \
  }                                                                                            \
  METALOPS_SIMD simd_##T##4 simd_make_##T##4(simd_##T##2 v, simd_##T##2 w) {                   \
    return (simd_##T##4){v.x, v.y, w.x, w.y};                                                  \
  }

METALOPS_SIMD_MAKE(float, float)
METALOPS_SIMD_MAKE(double, double)
METALOPS_SIMD_MAKE(int, int)
METALOPS_SIMD_MAKE(uint, unsigned int)
#undef METALOPS_SIMD_MAKE

// Functions of each element and of all elements. ELEMENTS: how many there are.
#define METALOPS_SIMD_ELEMENTWISE(V, E, ELEMENTS)                                             \
  METALOPS_SIMD V simd_min(V x, V y) {                                                        \
    for (int i = 0; i < ELEMENTS; ++i) x[i] = y[i] < x[i] || x[i] != x[i] ? y[i] : x[i];      \
    return x;                                                                                 \
  }                                                                                           \
  METALOPS_SIMD V simd_max(V x, V y) {                                                        \
    for (int i = 0; i < ELEMENTS; ++i) x[i] = y[i] > x[i] || x[i] != x[i] ? y[i] : x[i];      \
    return x;                                                                                 \
  }                                                                                           \
  METALOPS_SIMD V simd_clamp(V x, V low, V high) { return simd_min(simd_max(x, low), high); } \
  METALOPS_SIMD E simd_reduce_add(V x) {                                                      \
    E sum = x[0];                                                                             \
    for (int i = 1; i < ELEMENTS; ++i) sum += x[i];                                           \
    return sum;                                                                               \
  }                                                                                           \
  METALOPS_SIMD E simd_reduce_min(V x) {                                                      \
    E found = x[0];                                                                           \
    for (int i = 1; i < ELEMENTS; ++i) found = x[i] < found ? x[i] : found;                   \
    return found;                                                                             \
  }                                                                                           \
  METALOPS_SIMD E simd_reduce_max(V x) {                                                      \
    E found = x[0];                                                                           \
    for (int i = 1; i < ELEMENTS; ++i) found = x[i] > found ? x[i] : found;                   \
    return found;                                                                             \
  }

// Geometry, and the functions that Metal's library has under the same names.
#define METALOPS_SIMD_GEOMETRY(V, E, ELEMENTS, SQRT, FABS, FLOOR)                        \
  METALOPS_SIMD E simd_dot(V x, V y) { return simd_reduce_add(x * y); }                  \
  METALOPS_SIMD E simd_length_squared(V x) { return simd_dot(x, x); }                    \
  METALOPS_SIMD E simd_length(V x) { return SQRT(simd_dot(x, x)); }                      \
  METALOPS_SIMD E simd_distance_squared(V x, V y) { return simd_length_squared(x - y); } \
  METALOPS_SIMD E simd_distance(V x, V y) { return simd_length(x - y); }                 \
  METALOPS_SIMD V simd_normalize(V x) { return x / simd_length(x); }                     \
  METALOPS_SIMD V simd_reflect(V x, V n) { return x - 2 * simd_dot(x, n) * n; }          \
  METALOPS_SIMD V simd_project(V x, V y) { return simd_dot(x, y) / simd_dot(y, y) * y; } \
  METALOPS_SIMD V simd_mix(V x, V y, V t) { return x + t * (y - x); }                    \
  METALOPS_SIMD V simd_mix(V x, V y, E t) { return x + t * (y - x); }                    \
  METALOPS_SIMD V simd_recip(V x) { return 1 / x; }                                      \
  METALOPS_SIMD V simd_rsqrt(V x) {                                                      \
    for (int i = 0; i < ELEMENTS; ++i) x[i] = 1 / SQRT(x[i]);                            \
    return x;                                                                            \
  }                                                                                      \
  METALOPS_SIMD V simd_abs(V x) {                                                        \
    for (int i = 0; i < ELEMENTS; ++i) x[i] = FABS(x[i]);                                \
    return x;                                                                            \
  }                                                                                      \
  METALOPS_SIMD V simd_fract(V x) {                                                      \
    for (int i = 0; i < ELEMENTS; ++i) x[i] -= FLOOR(x[i]);                              \
    return x;                                                                            \
  }                                                                                      \
  METALOPS_SIMD V simd_sign(V x) {                                                       \
    for (int i = 0; i < ELEMENTS; ++i) x[i] = (E)((x[i] > 0) - (x[i] < 0));              \
    return x;                                                                            \
  }                                                                                      \
  METALOPS_SIMD V simd_step(V edge, V x) {                                               \
    for (int i = 0; i < ELEMENTS; ++i) x[i] = x[i] < edge[i] ? 0 : 1;                    \
    return x;                                                                            \
  }

#define METALOPS_SIMD_OF_FLOATS(V, ELEMENTS)    \
  METALOPS_SIMD_ELEMENTWISE(V, float, ELEMENTS) \
  METALOPS_SIMD_GEOMETRY(V, float, ELEMENTS, sqrtf, fabsf, floorf)
#define METALOPS_SIMD_OF_DOUBLES(V, ELEMENTS)    \
  METALOPS_SIMD_ELEMENTWISE(V, double, ELEMENTS) \
  METALOPS_SIMD_GEOMETRY(V, double, ELEMENTS, sqrt, fabs, floor)
METALOPS_SIMD_OF_FLOATS(simd_float2, 2)
METALOPS_SIMD_OF_FLOATS(simd_float3, 3)
METALOPS_SIMD_OF_FLOATS(simd_float4, 4)
METALOPS_SIMD_OF_DOUBLES(simd_double2, 2)
METALOPS_SIMD_OF_DOUBLES(simd_double3, 3)
METALOPS_SIMD_OF_DOUBLES(simd_double4, 4)
METALOPS_SIMD_ELEMENTWISE(simd_int2, int, 2)
METALOPS_SIMD_ELEMENTWISE(simd_int3, int, 3)
METALOPS_SIMD_ELEMENTWISE(simd_int4, int, 4)
METALOPS_SIMD_ELEMENTWISE(simd_uint2, unsigned int, 2)
METALOPS_SIMD_ELEMENTWISE(simd_uint3, unsigned int, 3)
METALOPS_SIMD_ELEMENTWISE(simd_uint4, unsigned int, 4)
#undef METALOPS_SIMD_OF_FLOATS
#undef METALOPS_SIMD_OF_DOUBLES
#undef METALOPS_SIMD_GEOMETRY
#undef METALOPS_SIMD_ELEMENTWISE

#define METALOPS_SIMD_CROSS(V) \
  METALOPS_SIMD V simd_cross(V x, V y) { return (x.zxy * y - x * y.zxy).zxy; }
METALOPS_SIMD_CROSS(simd_float3)
METALOPS_SIMD_CROSS(simd_double3)
#undef METALOPS_SIMD_CROSS

// Matrices by columns: simd_floatCxR has C of them, of R rows.
#define METALOPS_SIMD_MATRIX(E, C, R) \
  typedef struct {                    \
    simd_##E##R columns[C];           \
  } simd_##E##C##x##R;                \
  typedef simd_##E##C##x##R matrix_##E##C##x##R;
METALOPS_SIMD_MATRIX(float, 2, 2)
METALOPS_SIMD_MATRIX(float, 2, 3)
METALOPS_SIMD_MATRIX(float, 2, 4)
METALOPS_SIMD_MATRIX(float, 3, 2)
METALOPS_SIMD_MATRIX(float, 3, 3)
METALOPS_SIMD_MATRIX(float, 3, 4)
METALOPS_SIMD_MATRIX(float, 4, 2)
METALOPS_SIMD_MATRIX(float, 4, 3)
METALOPS_SIMD_MATRIX(float, 4, 4)
METALOPS_SIMD_MATRIX(double, 2, 2)
METALOPS_SIMD_MATRIX(double, 2, 3)
METALOPS_SIMD_MATRIX(double, 2, 4)
METALOPS_SIMD_MATRIX(double, 3, 2)
METALOPS_SIMD_MATRIX(double, 3, 3)
METALOPS_SIMD_MATRIX(double, 3, 4)
METALOPS_SIMD_MATRIX(double, 4, 2)
METALOPS_SIMD_MATRIX(double, 4, 3)
METALOPS_SIMD_MATRIX(double, 4, 4)
#undef METALOPS_SIMD_MATRIX

#define METALOPS_SIMD_SQUARE(M, V, E, N)                                        \
  METALOPS_SIMD V simd_mul(M m, V x) {                                          \
    V sum = m.columns[0] * x[0];                                                \
    for (int i = 1; i < N; ++i) sum += m.columns[i] * x[i];                     \
    return sum;                                                                 \
  }                                                                             \
  METALOPS_SIMD M simd_mul(M a, M b) {                                          \
    M product;                                                                  \
    for (int i = 0; i < N; ++i) product.columns[i] = simd_mul(a, b.columns[i]); \
    return product;                                                             \
  }                                                                             \
  METALOPS_SIMD M simd_mul(E a, M b) {                                          \
    for (int i = 0; i < N; ++i) b.columns[i] *= a;                              \
    return b;                                                                   \
  }                                                                             \
  METALOPS_SIMD M simd_add(M a, M b) {                                          \
    for (int i = 0; i < N; ++i) a.columns[i] += b.columns[i];                   \
    return a;                                                                   \
  }                                                                             \
  METALOPS_SIMD M simd_transpose(M a) {                                         \
    M turned;                                                                   \
    for (int i = 0; i < N; ++i)                                                 \
      for (int j = 0; j < N; ++j) turned.columns[i][j] = a.columns[j][i];       \
    return turned;                                                              \
  }
METALOPS_SIMD_SQUARE(simd_float2x2, simd_float2, float, 2)
METALOPS_SIMD_SQUARE(simd_float3x3, simd_float3, float, 3)
METALOPS_SIMD_SQUARE(simd_float4x4, simd_float4, float, 4)
METALOPS_SIMD_SQUARE(simd_double2x2, simd_double2, double, 2)
METALOPS_SIMD_SQUARE(simd_double3x3, simd_double3, double, 3)
METALOPS_SIMD_SQUARE(simd_double4x4, simd_double4, double, 4)
#undef METALOPS_SIMD_SQUARE

#define METALOPS_SIMD_IDENTITY(E)                                                            \
  static const simd_##E##2x2 matrix_identity_##E##2x2 = {{{1, 0}, {0, 1}}};                  \
  static const simd_##E##3x3 matrix_identity_##E##3x3 = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}}; \
  static const simd_##E##4x4 matrix_identity_##E##4x4 = {                                    \
      {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0}, {0, 0, 0, 1}}};
METALOPS_SIMD_IDENTITY(float)
METALOPS_SIMD_IDENTITY(double)
#undef METALOPS_SIMD_IDENTITY

METALOPS_SIMD simd_float3x3 simd_matrix(simd_float3 a, simd_float3 b, simd_float3 c) {
  return (simd_float3x3){{a, b, c}};
}
METALOPS_SIMD simd_float4x4 simd_matrix(simd_float4 a, simd_float4 b, simd_float4 c,
                                        simd_float4 d) {
  return (simd_float4x4){{a, b, c, d}};
}

#ifdef __cplusplus
namespace simd {
#define METALOPS_SIMD_NAMES(NAME)   \
  typedef ::simd_##NAME##2 NAME##2; \
  typedef ::simd_##NAME##3 NAME##3; \
  typedef ::simd_##NAME##4 NAME##4;
METALOPS_SIMD_NAMES(char)
METALOPS_SIMD_NAMES(uchar)
METALOPS_SIMD_NAMES(short)
METALOPS_SIMD_NAMES(ushort)
METALOPS_SIMD_NAMES(int)
METALOPS_SIMD_NAMES(uint)
METALOPS_SIMD_NAMES(long)
METALOPS_SIMD_NAMES(ulong)
METALOPS_SIMD_NAMES(float)
METALOPS_SIMD_NAMES(double)
#undef METALOPS_SIMD_NAMES

template <typename... Arguments>
METALOPS_SIMD auto dot(Arguments... x) {
  return ::simd_dot(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto cross(Arguments... x) {
  return ::simd_cross(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto length(Arguments... x) {
  return ::simd_length(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto length_squared(Arguments... x) {
  return ::simd_length_squared(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto distance(Arguments... x) {
  return ::simd_distance(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto normalize(Arguments... x) {
  return ::simd_normalize(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto min(Arguments... x) {
  return ::simd_min(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto max(Arguments... x) {
  return ::simd_max(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto clamp(Arguments... x) {
  return ::simd_clamp(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto mix(Arguments... x) {
  return ::simd_mix(x...);
}
template <typename... Arguments>
METALOPS_SIMD auto abs(Arguments... x) {
  return ::simd_abs(x...);
}
}  // namespace simd
#endif

#undef METALOPS_SIMD
