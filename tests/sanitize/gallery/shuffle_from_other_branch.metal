// mode: address, thread
// launch: kernel(floats(32), floats(32), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void take(device float* out, device const float* in, uint t [[thread_index_in_threadgroup]]) {
  float v = in[t], taken = 0;
#ifdef CORRECTED
  const float other = simd_shuffle(v, 20);
  if (t < 16) taken = other;
#else
  if (t < 16) taken = simd_shuffle(v, 20);
//                    ^~~~~~~~~~~~ undefined-simd-result
  else v = 0;
#endif
  out[t] = taken + v;
}
