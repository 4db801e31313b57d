// mode: address
// launch: kernel(floats(8), 4, threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void top(device float* out, constant long& count, uint i [[thread_position_in_grid]]) {
  float best[4];
#ifdef CORRECTED
  for (long k = 0; k < count; ++k) {
#else
  for (long k = 0; k <= count; ++k) {
#endif
    best[k] = float(k);
//  ^~~~~~~~~ out-of-bounds-index
  }
  out[i] = best[i & 3];
}
