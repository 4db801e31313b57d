// mode: address
// launch: kernel(floats(9, 5), [5, 9], threads=[5, 9], group_size=[8, 8])
#include <metal_stdlib>
using namespace metal;

// Multiplies the row by the number of rows.
kernel void fill(device float* out, constant long* size, uint2 at [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[at.y * size[0] + at.x] = float(at.x);
#else
  out[at.y * size[1] + at.x] = float(at.x);
//^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ heap-buffer-overflow
#endif
}
