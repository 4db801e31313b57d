// mode: thread
// launch: kernel(floats(64), floats(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void reverse(device float* out, device const float* in,
                    uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[t] = in[t];
//^~~~~~~~~~~~~~~~~ data-race
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_threadgroup);
#else
  threadgroup_barrier(mem_flags::mem_none);
#endif
  out[t] = shared[63 - t];
}
