// mode: address
// launch: kernel(floats(8), [1, 2, 3, 4, 5], threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void add(device float* out, constant long* values, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] += i < 5 ? float(values[i]) : 0.0f;
#else
  out[i] += float(values[i]);
//                ^~~~~~~~~ heap-buffer-overflow
#endif
}
