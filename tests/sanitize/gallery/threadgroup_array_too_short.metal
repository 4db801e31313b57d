// mode: address
// launch: kernel(floats(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void reverse(device float* x, uint i [[thread_index_in_threadgroup]]) {
#ifdef CORRECTED
  threadgroup float tile[64];
#else
  threadgroup float tile[63];
#endif
  threadgroup float* place = &tile[0] + i;
  *place = x[i];
//^~~~~~~~~~~~~ threadgroup-buffer-overflow
  threadgroup_barrier(mem_flags::mem_threadgroup);
#ifdef CORRECTED
  x[i] = tile[63 - i];
#else
  x[i] = tile[62 - min(i, 62u)];
#endif
}
