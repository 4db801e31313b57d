// mode: address
// launch: kernel(floats(100), 100, threads=128, group_size=32)
#include <metal_stdlib>
using namespace metal;

// The grid was rounded up to whole threadgroups.
kernel void scale(device float* x, constant uint& count, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (i >= count) return;
#endif
  x[i] = 2.0f;
//^~~~~~~~~~~ heap-buffer-overflow
}
