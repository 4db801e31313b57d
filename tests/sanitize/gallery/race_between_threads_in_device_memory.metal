// mode: thread
// launch: kernel(floats(65), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void shift(device float* x, uint i [[thread_position_in_grid]]) {
  const float next = x[i + 1];
#ifdef CORRECTED
  threadgroup_barrier(mem_flags::mem_device);
#endif
  x[i] = next;
//^~~~~~~~~~~ data-race
}
