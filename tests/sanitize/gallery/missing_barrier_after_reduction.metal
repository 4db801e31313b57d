// mode: thread
// launch: kernel(floats(64), floats(64), floats(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

float sum_of_group(threadgroup float* partial, float value, uint t) {
  partial[t] = value;
//^~~~~~~~~~~~~~~~~~ data-race
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0;
  for (uint k = 0; k < 64; ++k) total += partial[k];
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_threadgroup);  // or the second sum overwrites the first
#endif
  return total;
}

kernel void two_sums(device float* out, device const float* a, device const float* b,
                     uint t [[thread_index_in_threadgroup]]) {
  threadgroup float partial[64];
  const float first = sum_of_group(partial, a[t], t);
  out[t] = first + sum_of_group(partial, b[t], t);
}
