// mode: address
// launch: kernel(floats(36), threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void set_four(device float* out, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  device packed_float4* four = (device packed_float4*)(out + 4 * i + 1);
  four[0] = float4(i);
#else
  device float4* four = (device float4*)(out + 4 * i + 1);
  four[0] = float4(i);
//^~~~~~~~~~~~~~~~~~~ misaligned-pointer-use
#endif
}
