// mode: thread
// launch: kernel(floats(128), floats(128), threads=128, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void reverse_groups(device float* out, device const float* in,
                           uint i [[thread_position_in_grid]],
                           uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[t] = in[i];
//^~~~~~~~~~~~~~~~~ data-race
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  out[i] = shared[63 - t];
}
