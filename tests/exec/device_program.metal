#include <metal_simdgroup_matrix>
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

// What CPUs do in ways of their own, without functions that are right to a few units only.
kernel void numbers(device int* out, uint i [[thread_position_in_grid]],
                    uint lane [[thread_index_in_simdgroup]]) {
  const float x = (float(i) - 40.3f) * 54321.7f;
  const half h = half(x * 1e-3f);
  uint mixed = as_type<ushort>(half(h * h + 0.1h));
  mixed = mixed * 31 + as_type<ushort>(half(h / 3.0h));
  mixed = mixed * 31 + as_type<ushort>(bfloat(x) * bfloat(0.7f));
  mixed = mixed * 31 + uint(int(x));
  mixed = mixed * 31 + as_type<uint>(fma(x, x, 0.5f));
  mixed = mixed * 31 + as_type<uint>(rint(x) + trunc(x * 0.5f) + sqrt(abs(x)));
  mixed = mixed * 31 + clz(i) + popcount(mixed) + mulhi(mixed, 77777u);
  mixed = mixed * 31 + uint(int(char(i * 3)) >> 1);
  mixed += simd_shuffle_xor(mixed, 5) + simd_prefix_exclusive_sum(i);

  threadgroup float values[64];
  values[lane] = h;
  values[lane + 32] = lane;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_float8x8 matrix, product;
  simdgroup_load(matrix, values, 8);
  simdgroup_multiply(product, matrix, matrix);
  simdgroup_store(product, values, 8);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  out[i] = mixed ^ as_type<uint>(values[lane * 2]) ^ as_type<uint>(values[lane * 2 + 1]);
}
