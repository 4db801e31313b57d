// mode: address, thread
// launch: kernel(floats(40), floats(40), threads=40, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void reverse_groups(device float* out, device const float* in,
                           uint i [[thread_position_in_grid]],
                           uint t [[thread_index_in_threadgroup]],
                           uint n [[threads_per_threadgroup]]) {
  threadgroup float shared[32];
  shared[t] = in[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
#ifdef CORRECTED
  out[i] = shared[n - 1 - t];
#else
  out[i] = shared[31 - t];
//         ^~~~~~~~~~~~~~ uninitialized-threadgroup-read
#endif
}
