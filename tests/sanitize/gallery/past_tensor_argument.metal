// mode: address
// launch: kernel(floats(64), floats(64), threads=64)
#include <metal_stdlib>
#include <metal_tensor>
using namespace metal;

// Reads each element's neighbour from a tensor that it takes by a handle.
kernel void shift(tensor<device float, dextents<int, 1>> out, tensor<device float, dextents<int, 1>> in,
                  uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (i + 1 >= uint(in.get_extent(0))) return;
#endif
  out[i] = in[i + 1];
//       ^~~~~~~~~~~ heap-buffer-overflow
}
