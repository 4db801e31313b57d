// Builtins of Apple's Metal compiler that headers in the wild call directly (MLX's bf16_math.h).
// The bool parameter of some says whether fast math is allowed; it has no effect here.
#pragma once

#include <msl/simd.h>

namespace msl {

#define MSL_BUILTIN1(NAME) \
  MSL_INLINE float __metal_##NAME(float x, bool = false) { return metal::NAME(x); }
#define MSL_BUILTIN2(NAME) \
  MSL_INLINE float __metal_##NAME(float x, float y, bool = false) { return metal::NAME(x, y); }
#define MSL_BUILTIN3(NAME)                                                   \
  MSL_INLINE float __metal_##NAME(float x, float y, float z, bool = false) { \
    return metal::NAME(x, y, z);                                             \
  }
MSL_BUILTIN1(acos)
MSL_BUILTIN1(acosh)
MSL_BUILTIN1(asin)
MSL_BUILTIN1(asinh)
MSL_BUILTIN1(atan)
MSL_BUILTIN1(atanh)
MSL_BUILTIN1(ceil)
MSL_BUILTIN1(cos)
MSL_BUILTIN1(cosh)
MSL_BUILTIN1(cospi)
MSL_BUILTIN1(exp)
MSL_BUILTIN1(exp10)
MSL_BUILTIN1(exp2)
MSL_BUILTIN1(fabs)
MSL_BUILTIN1(floor)
MSL_BUILTIN1(fract)
MSL_BUILTIN1(log)
MSL_BUILTIN1(log10)
MSL_BUILTIN1(log2)
MSL_BUILTIN1(rint)
MSL_BUILTIN1(round)
MSL_BUILTIN1(rsqrt)
MSL_BUILTIN1(sin)
MSL_BUILTIN1(sinh)
MSL_BUILTIN1(sinpi)
MSL_BUILTIN1(sqrt)
MSL_BUILTIN1(tan)
MSL_BUILTIN1(tanh)
MSL_BUILTIN1(tanpi)
MSL_BUILTIN1(trunc)
MSL_BUILTIN2(atan2)
MSL_BUILTIN2(copysign)
MSL_BUILTIN2(divide)
MSL_BUILTIN2(fdim)
MSL_BUILTIN2(fmax)
MSL_BUILTIN2(fmin)
MSL_BUILTIN2(fmod)
MSL_BUILTIN2(nextafter)
MSL_BUILTIN2(pow)
MSL_BUILTIN2(powr)
MSL_BUILTIN3(fma)
MSL_BUILTIN3(fmax3)
MSL_BUILTIN3(fmedian3)
MSL_BUILTIN3(fmin3)
#undef MSL_BUILTIN1
#undef MSL_BUILTIN2
#undef MSL_BUILTIN3

MSL_INLINE float __metal_ldexp(float x, int exponent, bool = false) {
  return metal::ldexp(x, exponent);
}
MSL_INLINE int __metal_ilogb(float x) { return metal::ilogb(x); }
MSL_INLINE float __metal_sincos(float x, float* cosine, bool = false) {
  return metal::sincos(x, *cosine);
}
MSL_INLINE float __metal_modf(float x, float* whole, bool = false) {
  return metal::modf(x, *whole);
}
template <class E>
MSL_INLINE float __metal_frexp(float x, E* exponent, bool = false) {
  int e = 0;
  const float result = metal::frexp(x, e);
  *exponent = E(e);
  return result;
}
MSL_INLINE bool __metal_isfinite(float x, bool = false) { return __builtin_isfinite(x); }
MSL_INLINE bool __metal_isinf(float x, bool = false) { return __builtin_isinf(x) != 0; }
MSL_INLINE bool __metal_isnan(float x, bool = false) { return __builtin_isnan(x); }
MSL_INLINE bool __metal_isnormal(float x, bool = false) { return __builtin_isnormal(x); }

// Indices of the running thread, in the type of the argument. The names are those of
// vocabulary.py's THREAD_NUMBERS: they need a thread that runs alone, or group.h.
#define MSL_THREAD_NUMBERS(MACRO)                                \
  MACRO(thread_index_in_simdgroup, index % abi::kSimdWidth)      \
  MACRO(thread_index_in_quadgroup, index % 4)                    \
  MACRO(thread_index_in_threadgroup, index)                      \
  MACRO(simdgroup_index_in_threadgroup, index / abi::kSimdWidth) \
  MACRO(quadgroup_index_in_threadgroup, index / 4)
#define MSL_THREAD_NUMBER(NAME, VALUE)                       \
  template <class T>                                         \
  MSL_INLINE T __metal_get_##NAME(T) {                       \
    const abi::u32 index = msl_impl::index_in_threadgroup(); \
    return T(VALUE);                                         \
  }
MSL_THREAD_NUMBERS(MSL_THREAD_NUMBER)
#undef MSL_THREAD_NUMBER
#define MSL_CONSTANT_NUMBER(NAME, VALUE) \
  template <class T>                     \
  MSL_INLINE T __metal_get_##NAME(T) {   \
    return T(VALUE);                     \
  }
MSL_CONSTANT_NUMBER(simdgroup_size, abi::kSimdWidth)
MSL_CONSTANT_NUMBER(threads_per_simdgroup, abi::kSimdWidth)
MSL_CONSTANT_NUMBER(thread_execution_width, abi::kSimdWidth)
MSL_CONSTANT_NUMBER(quadgroup_size, 4)
#undef MSL_CONSTANT_NUMBER

// The bitwise ones are also instantiated for floats (as their bits), in overload sets that are
// never called.
#define MSL_COLLECTIVE(NAME)                                  \
  template <class T>                                          \
  MSL_INLINE T __metal_##NAME(T value, abi::Site site = {}) { \
    return metal::NAME(value, site);                          \
  }
MSL_COLLECTIVE(simd_sum)
MSL_COLLECTIVE(simd_product)
MSL_COLLECTIVE(simd_max)
MSL_COLLECTIVE(simd_min)
MSL_COLLECTIVE(simd_and)
MSL_COLLECTIVE(simd_or)
MSL_COLLECTIVE(simd_prefix_exclusive_product)
MSL_COLLECTIVE(simd_prefix_exclusive_sum)
MSL_COLLECTIVE(simd_prefix_inclusive_product)
MSL_COLLECTIVE(simd_prefix_inclusive_sum)
#undef MSL_COLLECTIVE
template <class T>
MSL_INLINE T __metal_simd_xor(T value, abi::Site site = {}) {
  if constexpr (metal::is_integral_v<T>) {
    return metal::simd_xor(value, site);
  } else {
    return as_type<T>(metal::simd_xor(as_type<int>(value), site));
  }
}
#define MSL_COLLECTIVE(NAME)                                                 \
  template <class T>                                                         \
  MSL_INLINE T __metal_##NAME(T value, ushort amount, abi::Site site = {}) { \
    return metal::NAME(value, amount, site);                                 \
  }
MSL_COLLECTIVE(simd_broadcast)
MSL_COLLECTIVE(simd_shuffle)
MSL_COLLECTIVE(simd_shuffle_down)
MSL_COLLECTIVE(simd_shuffle_up)
MSL_COLLECTIVE(simd_shuffle_xor)
MSL_COLLECTIVE(simd_shuffle_rotate_down)
MSL_COLLECTIVE(simd_shuffle_rotate_up)
#undef MSL_COLLECTIVE
#define MSL_COLLECTIVE(NAME)                                                    \
  template <class T>                                                            \
  MSL_INLINE T __metal_##NAME(T value, T filling, ushort amount, ushort modulo, \
                              abi::Site site = {}) {                            \
    return metal::NAME(value, filling, amount, modulo, site);                   \
  }
MSL_COLLECTIVE(simd_shuffle_and_fill_down)
MSL_COLLECTIVE(simd_shuffle_and_fill_up)
#undef MSL_COLLECTIVE

}  // namespace msl
