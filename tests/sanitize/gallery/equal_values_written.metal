// mode: thread
// launch: kernel(ints(1), ints(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void any_positive(device int* found, device const int* x,
                         uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (i == 5 && x[i] > 0) found[0] = 1;
#else
  if (x[i] > 0) found[0] = 1;
//              ^~~~~~~~~~~~ equal-writes
#endif
}
