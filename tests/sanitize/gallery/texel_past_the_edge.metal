// mode: address, thread
// launch: kernel(metalops.texture(floats(5, 5)), metalops.texture(floats(5, 5)), threads=(8, 8), group_size=(8, 8))
#include <metal_stdlib>
using namespace metal;

// Texels to the right of each one, also of the last column.
kernel void shift(texture2d<float, access::read> in, texture2d<float, access::write> out,
                  uint2 p [[thread_position_in_grid]]) {
  if (p.x >= 5 || p.y >= 5) return;
#ifdef CORRECTED
  float4 next = in.read(uint2(min(p.x + 1, 4u), p.y));
#else
  float4 next = in.read(uint2(p.x + 1, p.y));
//              ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~ texture-out-of-bounds
#endif
  out.write(next, p);
}
