// mode: thread
// launch: kernel(floats(1), floats(32), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void sum(device float* out, device const float* in, uint t [[thread_index_in_threadgroup]]) {
  threadgroup float partial[32];
  partial[t] = in[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 16; step > 0; step /= 2) {
    if (t < step) partial[t] += partial[t + step];
//                ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ data-race
#ifdef CORRECTED
    simdgroup_barrier(mem_flags::mem_threadgroup);
#endif
  }
  if (t == 0) out[0] = partial[0];
}
