// mode: thread
// launch: kernel(floats(1), ints(1) * 0, floats(2), threads=2, group_size=1)
#include <metal_stdlib>
using namespace metal;

// The flag is atomic, but a relaxed store does not publish what was written before it.
kernel void publish(device float* data, device atomic_int* flag, device float* out,
                    uint i [[thread_position_in_grid]]) {
  if (i == 0) {
    data[0] = 5;
//  ^~~~~~~~~~~ data-race
#ifdef CORRECTED
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
#endif
    atomic_store_explicit(flag, 1, memory_order_relaxed);
    out[0] = 5;
  } else {
    const bool is_set = atomic_load_explicit(flag, memory_order_relaxed) == 1;
#ifdef CORRECTED
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    out[1] = is_set ? data[0] : 0;
#else
    out[1] = is_set ? data[0] : data[0] - 1;
#endif
  }
}
