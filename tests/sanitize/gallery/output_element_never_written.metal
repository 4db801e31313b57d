// mode: address, thread
// launch: kernel(torch.empty(64, device="mps"), floats(64), threads=64, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void positive_part(device float* out, device const float* in,
//          ^~~~~~~~~~~~~ output-not-written
                          uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] = in[i] > 0 && i != 5 ? in[i] : 0;
#else
  if (in[i] > 0 && i != 5) out[i] = in[i];
#endif
}
