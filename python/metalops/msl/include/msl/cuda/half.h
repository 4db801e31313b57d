// Conversions of half and bfloat by the GPU's own instructions.
#pragma once

#include <msl/config.h>

namespace msl::msl_impl {

MSL_INLINE float half_value_of_device(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
MSL_INLINE unsigned short half_bits_of_device(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
// Available since compute capability 8.0.
MSL_INLINE unsigned short bfloat_bits_of_device(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

// x y + z, rounded once: for one element, and for two in a word.
MSL_INLINE unsigned short fma_of_device(unsigned short x, unsigned short y, unsigned short z) {
  unsigned short bits;
  asm("fma.rn.f16 %0, %1, %2, %3;" : "=h"(bits) : "h"(x), "h"(y), "h"(z));
  return bits;
}
MSL_INLINE unsigned fma_of_device(unsigned x, unsigned y, unsigned z) {
  unsigned bits;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(x), "r"(y), "r"(z));
  return bits;
}

}  // namespace msl::msl_impl
