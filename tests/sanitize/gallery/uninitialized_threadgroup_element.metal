// mode: address, thread
// launch: kernel(floats(64), floats(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void differences(device float* out, device const float* in,
                        uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[65];
  shared[t] = in[t];
#ifdef CORRECTED
  if (t == 63) shared[64] = 0;
#endif
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[t] = shared[t + 1] - shared[t];
//         ^~~~~~~~~~~~~ uninitialized-threadgroup-read
}
