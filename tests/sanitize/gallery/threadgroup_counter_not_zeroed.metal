// mode: thread
// launch: kernel(ints(2), threads=64, group_size=32)
#include <metal_stdlib>
using namespace metal;

kernel void count(device int* out, uint t [[thread_index_in_threadgroup]],
                  uint group [[threadgroup_position_in_grid]]) {
  threadgroup atomic_int counter;
#ifdef CORRECTED
  if (t == 0) atomic_store_explicit(&counter, 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
#endif
  atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
//^~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~ uninitialized-threadgroup-read
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (t == 0) out[group] = atomic_load_explicit(&counter, memory_order_relaxed);
}
