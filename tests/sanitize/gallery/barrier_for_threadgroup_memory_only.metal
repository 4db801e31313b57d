// mode: thread
// launch: kernel(floats(64), floats(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void square_reverse(device float* x, device float* squares,
                           uint t [[thread_index_in_threadgroup]]) {
  squares[t] = x[t] * x[t];
//^~~~~~~~~~~~~~~~~~~~~~~~ data-race
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_device);
#else
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  x[t] = squares[63 - t];
}
