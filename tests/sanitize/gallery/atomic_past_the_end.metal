// mode: address
// launch: kernel(ints(10), ints(64) * 10, threads=64)
#include <metal_stdlib>
using namespace metal;

kernel void histogram(device atomic_int* counts, device const int* in,
                      uint i [[thread_position_in_grid]]) {
#ifdef CORRECTED
  if (in[i] >= 10) return;
#endif
  atomic_fetch_add_explicit(&counts[in[i]], 1, memory_order_relaxed);
//^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ heap-buffer-overflow
}
