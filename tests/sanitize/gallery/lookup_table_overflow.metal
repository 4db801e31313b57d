// mode: address
// launch: kernel(floats(17), threads=17)
#include <metal_stdlib>
using namespace metal;

constant float kTable[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

kernel void look_up(device float* out, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] = kTable[i & 15];
#else
  out[i] = kTable[i];
//         ^~~~~~~~~ out-of-bounds-index
#endif
}
