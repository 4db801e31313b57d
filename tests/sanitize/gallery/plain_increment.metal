// mode: thread
// launch: kernel(ints(10), ints(64), threads=64, group_size=32)
#include <metal_stdlib>
using namespace metal;

#ifdef CORRECTED
kernel void histogram(device atomic_int* counts, device const int* in,
                      uint i [[thread_position_in_grid]]) {
  atomic_fetch_add_explicit(&counts[in[i]], 1, memory_order_relaxed);
}
#else
kernel void histogram(device int* counts, device const int* in,
                      uint i [[thread_position_in_grid]]) {
  counts[in[i]] += 1;
//^~~~~~~~~~~~~~~~~~ data-race
}
#endif
