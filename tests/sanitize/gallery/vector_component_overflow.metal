// mode: address
// launch: kernel(floats(8), 5, threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void component(device float* out, constant long& k, uint i [[thread_position_in_grid]]) {
  float4 v = float4(float(i));
#ifdef CORRECTED
  out[i] = v[k & 3];
#else
  out[i] = v[k];
//       ^~~~~~ stack-buffer-overflow
#endif
}
