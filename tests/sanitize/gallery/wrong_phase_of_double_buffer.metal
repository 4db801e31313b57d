// mode: thread
// launch: kernel(floats(32), floats(128), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

// Tile k is read while tile k + 1 is fetched; the phase that is written must be the other one.
kernel void sum_of_tiles(device float* out, device const float* in,
                         uint t [[thread_index_in_threadgroup]]) {
  threadgroup float tiles[2][32];
  tiles[0][t] = in[t];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float total = 0;
  for (uint k = 0; k < 4; ++k) {
#ifdef CORRECTED
    if (k < 3) tiles[(k + 1) & 1][t] = in[(k + 1) * 32 + t];
    total += tiles[k & 1][31 - t];
#else
    if (k < 3) tiles[k & 1][t] = in[(k + 1) * 32 + t];
//             ^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ data-race
    total += tiles[k & 1][31 - t];
#endif
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[t] = total;
}
