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
// Since compute capability 8.0.
MSL_INLINE unsigned short bfloat_bits_of_device(float value) {
  unsigned short bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

}  // namespace msl::msl_impl
