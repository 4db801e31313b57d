#include <metal_stdlib>
using namespace metal;

constant int value [[function_constant(0)]];

kernel void plain(device int* out, uint i [[thread_position_in_grid]]) { out[i] += 7; }

kernel void constant_value(device int* out, uint i [[thread_position_in_grid]]) {
  out[i] = is_function_constant_defined(value) ? value : -1;
}

kernel void slow(device int* out, uint i [[thread_position_in_grid]]) {
  float x = i;
  for (uint k = 0; k < 20000; ++k) x = x * 0.999f + 0.5f;
  out[i] = x == 0 ? 0 : 3;
}

kernel void synchronising(device int* out, uint i [[thread_position_in_grid]],
                          uint t [[thread_index_in_threadgroup]]) {
  threadgroup int sums[2];
  const int sum = simd_sum(1);
  if (t % 32 == 0) sums[t / 32] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = sums[0] + sums[1];
}

kernel void different_barriers(device int* out, uint i [[thread_position_in_grid]],
                               uint t [[thread_index_in_threadgroup]]) {
  if (t < 7) {
    threadgroup_barrier(mem_flags::mem_none);
    out[i] = 1;
  } else {
    threadgroup_barrier(mem_flags::mem_none);
  }
}
