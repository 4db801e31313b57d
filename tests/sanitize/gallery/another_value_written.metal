// mode: thread
// launch: kernel(ints(1), ints(64), threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void last_index(device int* found, device const int* x,
                       uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (i == 63) found[0] = x[i] + 1;
#else
  found[0] = i == 40 ? 7 : x[i];
//^~~~~~~~~~~~~~~~~~~~~~~~~~~~~ data-race
#endif
}
