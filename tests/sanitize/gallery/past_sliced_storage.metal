// mode: address
// launch: kernel(floats(40), torch.ones(64, device="mps")[24:], threads=40)
#include <metal_stdlib>
using namespace metal;

// Adds the offset of a slice that is in the address already.
kernel void copy(device float* out, device const float* in, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] = in[i];
#else
  out[i] = in[24 + i];
//         ^~~~~~~~~~ heap-buffer-overflow
#endif
}
