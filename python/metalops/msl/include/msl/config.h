// Features of the host compiler. Included first by every other header of Metal's standard library.
//
// No standard header is ever included: emitted Metal code must not see libc's names (::div,
// ::index, ::abs ...). Whatever the library needs from the compiler comes from builtins and
// predefined macros.
#pragma once

#if defined(__CUDACC_RTC__)
#include <msl/cuda/config.h>
#else

#include <msl/abi.h>

// For small functions that must be inlined into their callers, or loops over the grid do not
// vectorise.
#define MSL_INLINE inline __attribute__((always_inline))

// clang fully unrolls loops of known length before it vectorises, and then finds nothing to
// vectorise.
#ifdef __clang__
#define MSL_NOT_UNROLLED _Pragma("clang loop unroll(disable)")
#else
#define MSL_NOT_UNROLLED
#endif

// half is the compiler's own 16-bit float where loops over it vectorise. g++ for x86-64 has no
// vector conversion between it and float, except on CPUs that compute in half.
#if defined(__FLT16_MANT_DIG__) && \
    (defined(__clang__) || !defined(__x86_64__) || defined(__AVX512FP16__))
#define MSL_NATIVE_HALF 1
#else
#define MSL_NATIVE_HALF 0
#endif

// Arithmetic on float4 uses the compiler's own vectors. Otherwise g++ sees four scalars and
// vectorises them across iterations or threads, gathering the elements one by one.
#if defined(__GNUC__) && !defined(__clang__)
#define MSL_WHOLE_FLOAT4 1
#else
#define MSL_WHOLE_FLOAT4 0
#endif

// For loops whose arrays must be in registers on GPUs.
#define MSL_UNROLLED

// glibc's vector math library: g++ calls it through the declarations in math_scalar.h, clang
// through -fveclib.
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define MSL_SIMD_DECLARATIONS 1
#else
#define MSL_SIMD_DECLARATIONS 0
#endif

// 1 if a sanitizer's instrumentation is compiled in (sanitizers.py): then msl/instrument.h takes
// its calls.
#if defined(MSL_SANITIZE_THREAD) || defined(MSL_SANITIZE_ADDRESS)
#define MSL_INSTRUMENTED 1
#else
#define MSL_INSTRUMENTED 0
#endif

#if defined(MSL_PORTABLE) && defined(__clang__)
namespace msl::msl_support {
// Returns true if the CPU can run the second version of functions, compiled for wider registers.
inline bool has_wide_registers() {
  static const bool has = [] {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  }();
  return has;
}
}  // namespace msl::msl_support
#endif

// Set by metalops_bind before any kernel of the library runs. Defined once in the emitted code.
extern const msl::abi::Runtime* msl_runtime __attribute__((visibility("hidden")));
#endif
