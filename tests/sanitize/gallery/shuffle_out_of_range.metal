// mode: address, thread
// launch: kernel(floats(32), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void next(device float* x, uint t [[thread_index_in_threadgroup]]) {
#ifdef CORRECTED
  x[t] = simd_shuffle(x[t], ushort((t + 1) % 32));
#else
  x[t] = simd_shuffle(x[t], ushort(t + 1));
//       ^~~~~~~~~~~~ undefined-simd-result
#endif
}
