// mode: address, thread
// launch: kernel(floats(60), floats(60), 60, threads=64, group_size=64)
#include <metal_stdlib>
using namespace metal;

kernel void reverse(device float* out, device const float* in, constant uint& n,
                    uint t [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
#ifdef CORRECTED
  if (t < n) shared[t] = in[t];
#else
  if (t >= n) return;
  shared[t] = in[t];
#endif
  threadgroup_barrier(mem_flags::mem_threadgroup);
//^~~~~~~~~~~~~~~~~~~ barrier-divergence
  if (t < n) out[t] = shared[n - 1 - t];
}
