// mode: address
// launch: kernel(floats(64), floats(64), threads=64)
#include <metal_stdlib>
using namespace metal;

kernel void smooth(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] = 0.5f * (in[i] + in[max(int(i) - 1, 0)]);
#else
  out[i] = 0.5f * (in[i] + in[int(i) - 1]);
//                         ^~~~~~~~~~~~~~ heap-buffer-overflow
#endif
}
