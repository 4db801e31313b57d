// mode: thread
// launch: kernel(floats(32), torch.arange(128.0, device="mps"), threads=128, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void last_one_wins(device float* out, device const float* in,
                          uint i [[thread_position_in_grid]],
                          uint t [[thread_index_in_threadgroup]],
                          uint group [[threadgroup_position_in_grid]]) {
#ifdef CORRECTED
  if (group == 3) out[t] = in[i];
#else
  out[t] = in[i];
//^~~~~~~~~~~~~~ data-race
#endif
}
