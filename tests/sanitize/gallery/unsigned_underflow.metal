// mode: address
// launch: kernel(floats(64), floats(64), threads=64)
#include <metal_stdlib>
using namespace metal;

// i - 1 of thread 0 is 4294967295: 16 GiB away.
kernel void smooth(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] = 0.5f * (in[i] + in[i == 0 ? 0 : i - 1]);
#else
  out[i] = 0.5f * (in[i] + in[i - 1]);
//                 ^~~~~~~~~~~~~~~~~ wild-address
#endif
}
