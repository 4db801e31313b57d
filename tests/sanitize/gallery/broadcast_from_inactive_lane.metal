// mode: address, thread
// launch: kernel(floats(32), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void subtract_first(device float* x, uint t [[thread_index_in_threadgroup]]) {
#ifdef CORRECTED
  const float first = simd_broadcast(x[t], 0);
  if (t > 0) x[t] -= first;
#else
  if (t > 0) x[t] -= simd_broadcast(x[t], 0);
//                   ^~~~~~~~~~~~~~ undefined-simd-result
#endif
}
