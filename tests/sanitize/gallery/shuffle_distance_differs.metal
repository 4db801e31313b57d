// mode: address, thread
// launch: kernel(floats(32), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void look_ahead(device float* x, uint t [[thread_index_in_threadgroup]]) {
#ifdef CORRECTED
  x[t] = simd_shuffle(x[t], ushort(min(t + t % 3, 31u)));
#else
  x[t] = simd_shuffle_down(x[t], ushort(t % 3));
//       ^~~~~~~~~~~~~~~~~ undefined-simd-result
#endif
}
