// mode: address
// launch: kernel(metalops.texture(ints(4, 4)), metalops.sampler("linear"), ints(4), threads=4)
#include <metal_stdlib>
using namespace metal;

kernel void look(texture2d<int> t, sampler s, device int* out, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  constexpr sampler nearest(filter::nearest);
  out[i] = t.sample(nearest, float2(0.25f * i, 0)).x;
#else
  out[i] = t.sample(s, float2(0.25f * i, 0)).x;
//         ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ linear-integer-texture
#endif
}
