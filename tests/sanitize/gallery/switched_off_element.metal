// mode: address
// launch: kernel(floats(3), threads=3)
#include <metal_stdlib>
using namespace metal;

constant bool adds [[function_constant(0)]];

kernel void add_next(device float* out [[buffer(0)]],
                device const float* extra [[buffer(1), function_constant(adds)]],
                uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (!adds) return;
#endif
  out[i] += extra[i + 1];
  //        ^~~~~~~~~~~~ null-pointer-use
}
