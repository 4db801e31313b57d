// mode: address
// launch: kernel(floats(32), torch.arange(32, dtype=torch.int32, device="mps"), threads=32,
//   group_size=32)
#include <metal_stdlib>
using namespace metal;

// The sum of two lanes' indices goes past the end.
kernel void gather(device float* x, device const uint* index, uint i [[thread_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
  uint other = simd_shuffle_xor(index[i], 16);
#ifdef CORRECTED
  x[(index[i] + other) & 31] = 1.0f;
#else
  x[index[i] + other] = 1.0f;
//^~~~~~~~~~~~~~~~~~~~~~~~~~ heap-buffer-overflow
#endif
}
