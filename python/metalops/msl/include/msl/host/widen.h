// Converts adjacent elements to float, eight at a time.
#pragma once

#include <msl/host/transpose.h>

namespace msl::msl_impl {

// Returns from[0] to from[7]. g++ 12 converts halves one by one, so they have their instruction.
template <class T>
MSL_INLINE EightFloats widen_eight(const T* from) {
  EightFloats result;
#if !MSL_INSTRUMENTED
#if defined(__F16C__)
  if constexpr (metal::is_same_v<T, half>) {
    typedef unsigned short EightHalves __attribute__((vector_size(16)));
    EightHalves halves;
    __builtin_memcpy(&halves, from, sizeof(halves));
    __asm__("vcvtph2ps %1, %0" : "=x"(result) : "x"(halves));
    return result;
  }
#endif
  if constexpr (metal::is_same_v<T, bfloat>) {
    typedef unsigned short EightBfloats __attribute__((vector_size(16)));
    typedef unsigned EightWords __attribute__((vector_size(32)));
    EightBfloats bits;
    __builtin_memcpy(&bits, from, sizeof(bits));
    return EightFloats(__builtin_convertvector(bits, EightWords) << 16);
  }
#endif
  for (int i = 0; i < 8; ++i) result[i] = float(from[i]);
  return result;
}

// to[i] = from[i] for i < count.
template <class T>
MSL_INLINE void widen_run(float* to, const T* from, int count) {
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    const EightFloats eight = widen_eight(from + i);
    __builtin_memcpy(to + i, &eight, sizeof(eight));
  }
  for (; i < count; ++i) to[i] = float(from[i]);
}

}  // namespace msl::msl_impl
