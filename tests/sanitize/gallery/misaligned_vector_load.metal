// mode: address
// launch: kernel(floats(8), floats(36), threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void sum_of_four(device float* out, device const float* in,
                        uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  float4 v = float4(*(device const packed_float4*)(in + 4 * i + 1));
#else
  float4 v = *(device const float4*)(in + 4 * i + 1);
//           ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ misaligned-pointer-use
#endif
  out[i] = v.x + v.y + v.z + v.w;
}
