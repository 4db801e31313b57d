// Features of the host compilers that NVRTC lacks, and the indices of a CUDA thread.
//
// Compiled with -default-device: functions are device functions without being declared so. The
// host's builtins exist under their names, so that headers common to all targets need no special
// cases.
#pragma once

#define MSL_INLINE inline __attribute__((always_inline))
#define MSL_NATIVE_HALF 0
#define MSL_WHOLE_FLOAT4 0
#define MSL_SIMD_DECLARATIONS 0
#define MSL_INSTRUMENTED 0
#define MSL_UNROLLED _Pragma("unroll")

// Only on compute capability 9.0 (wgmma).
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MSL_WARPGROUPS 1
#endif

#define __SIZE_TYPE__ unsigned long
#define __PTRDIFF_TYPE__ long
#define __INTPTR_TYPE__ long
#define __UINTPTR_TYPE__ unsigned long

namespace msl::abi {

typedef unsigned char u8;
typedef int i32;
typedef unsigned int u32;
typedef unsigned long u64;

constexpr u32 kSimdWidth = 32;

}  // namespace msl::abi

#include <msl/cuda/lanes.h>
#include <msl/cuda/site.h>

namespace msl::abi {

MSL_INLINE constexpr float absolute(float x) {
  return __builtin_bit_cast(float, __builtin_bit_cast(u32, x) & 0x7fffffffu);
}

}  // namespace msl::abi

// Usable in constant expressions.
#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000)
#define __builtin_nanf(text) __builtin_bit_cast(float, 0x7fc00000)
#define __builtin_fabsf ::msl::abi::absolute
#define __builtin_expect(value, expected) (value)
#define __builtin_clzl ::__clzll
#define __builtin_ctzl(bits) (::__ffsll(bits) - 1)
#define __builtin_ctz(bits) (::__ffs(bits) - 1)
#define __builtin_popcount ::__popc
#define __builtin_popcountl ::__popcll
#define __builtin_isfinite(x) ::isfinite(x)
#define __builtin_isinf(x) ::isinf(x)
#define __builtin_isnan(x) ::isnan(x)
#define __builtin_isnormal(x) (::isfinite(x) && ::fabsf(x) >= 0x1p-126f)
#define __builtin_acosf ::acosf
#define __builtin_acoshf ::acoshf
#define __builtin_asinf ::asinf
#define __builtin_asinhf ::asinhf
#define __builtin_atanf ::atanf
#define __builtin_atan2f ::atan2f
#define __builtin_atanhf ::atanhf
#define __builtin_ceilf ::ceilf
#define __builtin_copysignf ::copysignf
#define __builtin_cosf ::cosf
#define __builtin_coshf ::coshf
#define __builtin_floorf ::floorf
#define __builtin_fmaf ::fmaf
#define __builtin_fmaxf ::fmaxf
#define __builtin_fminf ::fminf
#define __builtin_fmodf ::fmodf
#define __builtin_frexpf ::frexpf
#define __builtin_ilogbf ::ilogbf
#define __builtin_ldexpf ::ldexpf
#define __builtin_nextafterf ::nextafterf
#define __builtin_log2 ::log2
#define __builtin_memcpy ::memcpy
#define __builtin_pow ::pow
#define __builtin_powf ::powf
#define __builtin_rintf ::rintf
#define __builtin_roundf ::roundf
#define __builtin_sinf ::sinf
#define __builtin_sinhf ::sinhf
#define __builtin_sqrtf ::sqrtf
#define __builtin_tanf ::tanf
#define __builtin_truncf ::truncf

template <class T>
MSL_INLINE constexpr bool __builtin_add_overflow(T x, T y, T* sum) {
  *sum = T((unsigned long)x + (unsigned long)y);
  return T(-1) < T(0) ? (y < T(0) ? *sum > x : *sum < x) : *sum < x;
}
template <class T>
MSL_INLINE constexpr bool __builtin_sub_overflow(T x, T y, T* difference) {
  *difference = T((unsigned long)x - (unsigned long)y);
  return T(-1) < T(0) ? (y < T(0) ? *difference < x : *difference > x) : x < y;
}
MSL_INLINE constexpr unsigned long __builtin_bswap64(unsigned long bits) {
  bits = ((bits & 0x00ff00ff00ff00fful) << 8) | ((bits >> 8) & 0x00ff00ff00ff00fful);
  bits = ((bits & 0x0000ffff0000fffful) << 16) | ((bits >> 16) & 0x0000ffff0000fffful);
  return bits << 32 | bits >> 32;
}
