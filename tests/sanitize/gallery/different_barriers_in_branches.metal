// mode: address, thread
// launch: kernel(floats(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void exchange(device float* x, uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[t] = x[t];
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[t] = t < 32 ? shared[t + 32] : -shared[t - 32];
#else
  if (t < 32) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
//  ^~~~~~~~~~~~~~~~~~~ barrier-divergence
    x[t] = shared[t + 32];
  } else {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    x[t] = -shared[t - 32];
  }
#endif
}
