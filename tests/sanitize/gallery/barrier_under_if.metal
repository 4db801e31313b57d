// mode: address, thread
// launch: kernel(floats(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void scale(device float* x, uint t [[thread_index_in_threadgroup]]) {
  threadgroup float factor;
  if (t == 0) factor = x[0];
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t < 40) {
#else
  if (t < 40) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
//  ^~~~~~~~~~~~~~~~~~~ barrier-divergence
#endif
    x[t] *= factor;
  }
}
