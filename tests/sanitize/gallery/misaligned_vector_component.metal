// mode: address
// launch: kernel(floats(36), threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void set_second(device float* out, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  ((device packed_float4*)(out + 4 * i + 2))->y = 1;
#else
  ((device float4*)(out + 4 * i + 2))->y = 1;
//^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ misaligned-pointer-use
#endif
}
