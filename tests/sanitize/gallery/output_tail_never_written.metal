// mode: address, thread
// launch: kernel(torch.empty(70, device="mps"), floats(70), threads=17, group_size=17)
#include <metal_stdlib>
using namespace metal;

// 70 elements are 17 vectors of four and two more.
kernel void twice(device float* out, device const float* in,
//          ^~~~~ output-not-written
                  uint i [[thread_position_in_grid]]) {
  for (uint k = 4 * i; k < 4 * i + 4; ++k) out[k] = 2 * in[k];
#ifdef CORRECTED
  if (i == 16) {
    for (uint k = 68; k < 70; ++k) out[k] = 2 * in[k];
  }
#endif
}
