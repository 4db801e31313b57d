// mode: address
// launch: kernel(ints(8), torch.full((8,), float("nan"), device="mps"), threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void bin(device int* out, device const float* in, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (isnan(in[i])) return;
#endif
  out[i] = static_cast<int>(in[i] * 10.0f);
//         ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ float-cast-overflow
}
