// mode: address
// launch: kernel(floats(8), threads=8)
#include <metal_stdlib>
using namespace metal;

void fill(thread float* values, int count) {
  for (int k = 0; k < count; ++k) {
    values[k] = 1.0f;
//  ^~~~~~~~~~~~~~~~ stack-buffer-overflow
  }
}

kernel void local(device float* out, uint i [[thread_position_in_grid]]) {
  float values[6];
#ifdef CORRECTED
  fill(values, 6);
#else
  fill(values, 7);
#endif
  out[i] = values[i % 6];
}
