// Mathematical functions of one float that the host library computes itself; here they are CUDA's.
#pragma once

#include <msl/half.h>

namespace msl::msl_impl {

#define MSL_OF_CUDA(NAME) \
  MSL_INLINE float NAME(float x) { return ::NAME##f(x); }
MSL_OF_CUDA(sin)
MSL_OF_CUDA(cos)
MSL_OF_CUDA(exp)
MSL_OF_CUDA(exp2)
MSL_OF_CUDA(exp10)
MSL_OF_CUDA(log)
MSL_OF_CUDA(log2)
MSL_OF_CUDA(log10)
MSL_OF_CUDA(tanh)
MSL_OF_CUDA(sinpi)
MSL_OF_CUDA(cospi)
#undef MSL_OF_CUDA
MSL_INLINE float pow(float x, float y) { return ::powf(x, y); }
MSL_INLINE float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
MSL_INLINE float tanpi(float x) { return ::sinpif(x) / ::cospif(x); }

// Functions of metal::fast that differ: one instruction as on Apple's GPUs, within 2 ulp, which
// flushes denormals to zero.
namespace fast {
using namespace msl_impl;
MSL_INLINE float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
}  // namespace fast

}  // namespace msl::msl_impl
