// mode: address, thread
// launch: kernel(floats(1), floats(20), threads=20, group_size=20)
#include <metal_stdlib>
using namespace metal;

// 20 threads: the lanes from 20 on do not exist.
kernel void sum(device float* out, device const float* in, uint t [[thread_index_in_threadgroup]]) {
  float total = in[t];
#ifdef CORRECTED
  total = simd_sum(total);
#else
  for (ushort step = 16; step > 0; step /= 2) total += simd_shuffle_down(total, step);
//                                                     ^~~~~~~~~~~~~~~~~ undefined-simd-result
#endif
  if (t == 0) out[0] = total;
}
