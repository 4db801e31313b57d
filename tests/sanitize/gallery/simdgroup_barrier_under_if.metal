// mode: address, thread
// launch: kernel(floats(32), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void swap_pairs(device float* x, uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[32];
  shared[t] = x[t];
#ifdef CORRECTED
  simdgroup_barrier(mem_flags::mem_threadgroup);
#endif
  if (t < 30) {
#ifndef CORRECTED
    simdgroup_barrier(mem_flags::mem_threadgroup);
//  ^~~~~~~~~~~~~~~~~ barrier-divergence
#endif
    x[t] = shared[t ^ 1];
  }
}
