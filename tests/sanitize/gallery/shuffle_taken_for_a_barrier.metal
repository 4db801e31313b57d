// mode: thread
// launch: kernel(floats(32), floats(32), threads=32, group_size=32)
#include <metal_stdlib>
using namespace metal;

// A simdgroup operation waits for the lanes, but does not order what they have written.
kernel void reverse(device float* out, device const float* in,
                    uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[32];
  shared[t] = in[t];
//^~~~~~~~~~~~~~~~~ data-race
#ifdef CORRECTED
  simdgroup_barrier(mem_flags::mem_threadgroup);
#endif
  const float total = simd_sum(in[t]);
  out[t] = shared[31 - t] / total;
}
