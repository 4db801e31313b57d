// mode: thread
// launch: kernel(floats(4), floats(128), threads=128, group_size=32)
#include <metal_stdlib>
using namespace metal;

// Each group adds to what the group before it has left: nothing says that it has run.
kernel void running_sum(device float* sums, device const float* in,
                        uint t [[thread_index_in_threadgroup]],
                        uint group [[threadgroup_position_in_grid]]) {
  if (t != 0) return;
  float total = 0;
#ifdef CORRECTED
  const uint begin = 0;
#else
  const uint begin = group * 32;
  if (group > 0) total = sums[group - 1];
#endif
  for (uint k = begin; k < (group + 1) * 32; ++k) total += in[k];
  sums[group] = total;
//^~~~~~~~~~~~~~~~~~~ data-race
}
