// mode: thread
// launch: kernel(floats(2), floats(128), threads=128, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void sum(device float* out, device const float* in, uint i [[thread_position_in_grid]],
                uint t [[thread_index_in_threadgroup]],
                uint group [[threadgroup_position_in_grid]]) {
  threadgroup float partial[64];
  partial[t] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint step = 32; step > 0; step /= 2) {
    if (t < step) partial[t] += partial[t + step];
//                ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ data-race
#ifdef CORRECTED
    threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  }
  if (t == 0) out[group] = partial[0];
}
