// mode: address
// launch: kernel(floats(30), 30, threads=8)
#include <metal_stdlib>
using namespace metal;

// Four elements a thread, and a count that four does not divide.
kernel void fill(device packed_float4* out, constant long& count,
                 uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (4 * i + 4 > count) return;
#endif
  out[i] = packed_float4(1.0f);
//^~~~~~~~~~~~~~~~~~~~~~~~~~~~ heap-buffer-overflow
}
