// mode: thread
// launch: kernel(metalops.texture(floats(4, 4)), threads=(8, 1), group_size=(8, 1))
#include <metal_stdlib>
using namespace metal;

// Threads meet in one texel.
kernel void mark(texture2d<float, access::write> out, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out.write(float4(i), uint2(i % 4, i / 4));
#else
  out.write(float4(i), uint2(0, 0));
//^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ data-race
#endif
}
