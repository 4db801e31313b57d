// mode: address
// launch: kernel(floats(33), floats(33), 33, threads=33, group_size=32)
#include <metal_stdlib>
using namespace metal;

// Takes the difference to the next element, which the last one does not have.
kernel void difference(device float* out, device const float* in, constant uint& count,
                       uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] = i + 1 < count ? in[i + 1] - in[i] : 0.0f;
#else
  out[i] = in[i + 1] - in[i];
//         ^~~~~~~~~ heap-buffer-overflow
#endif
}
