// mode: address
// launch: kernel(floats(3, 7), floats(7, 3), threads=[3, 7], group_size=[3, 7])
#include <metal_stdlib>
using namespace metal;

kernel void transpose(device float* out, device const float* in,
                      uint2 at [[thread_position_in_grid]],
                      uint2 size [[threads_per_grid]]) {
#ifdef CORRECTED
  out[at.x * size.y + at.y] = in[at.y * size.x + at.x];
#else
  out[at.x * size.y + at.y] = in[at.x * size.y * size.x + at.y];
//                            ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ heap-buffer-overflow
#endif
}
