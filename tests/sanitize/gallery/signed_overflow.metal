// mode: address
// launch: kernel(ints(8), threads=8)
#include <metal_stdlib>
using namespace metal;

kernel void hash(device int* x, uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  x[i] = int(uint(x[i] + int(i)) * 2654435761u);
#else
  x[i] = (x[i] + int(i)) * 1000000007;
//       ^~~~~~~~~~~~~~~~~~~~~~~~~~~~ signed-integer-overflow
#endif
}
