// mode: address
// launch: kernel(floats(8), torch.empty(0, device="mps"), 0, threads=8)
#include <metal_stdlib>
using namespace metal;

// An empty tensor has no memory at all.
kernel void add_bias(device float* out, device const float* bias, constant long& count,
                     uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (count == 0) return;
#endif
  out[i] += bias[0];
//          ^~~~~~~ null-pointer-use
}
