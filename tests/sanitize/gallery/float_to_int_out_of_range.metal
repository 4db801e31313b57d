// mode: address
// launch: kernel(ints(8), torch.full((8,), 3e9, device="mps"), threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void convert(device int* out, device const float* in, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  out[i] = int(clamp(in[i], -2147483648.0f, 2147483520.0f));
#else
  out[i] = int(in[i]);
//         ^~~~~~~~~~ float-cast-overflow
#endif
}
