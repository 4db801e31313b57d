// mode: address, thread
// launch: kernel(floats(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void smooth(device float* x, uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[t] = x[t];
#ifdef CORRECTED
  const uint rounds = 4;
#else
  const uint rounds = t < 32 ? 4 : 3;
#endif
  for (uint k = 0; k < rounds; ++k) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
//  ^~~~~~~~~~~~~~~~~~~ barrier-divergence
    const float mean = (shared[t] + shared[t ^ 1]) / 2;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    shared[t] = mean;
  }
  x[t] = shared[t];
}
