// Kernels whose threads wait for each other, as people write them, for benchmarks/synchronising.py.
// A threadgroup a row, of any number of threads; matrices are square and row-major.
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

#define ROW                                                                              \
  uint row [[threadgroup_position_in_grid]], uint t [[thread_position_in_threadgroup]],  \
      uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]], \
      uint simdgroup [[simdgroup_index_in_threadgroup]],                                 \
      uint simdgroups [[simdgroups_per_threadgroup]]

// The sum of all threads' values, for all of them. shared: one float for each simdgroup.
inline float sum_of_group(float value, threadgroup float* shared, uint lane, uint simdgroup,
                          uint simdgroups) {
  value = simd_sum(value);
  if (lane == 0) shared[simdgroup] = value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  value = simd_sum(lane < simdgroups ? shared[lane] : 0.0f);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return value;
}

kernel void row_sum(device float* out, device const float* in, constant uint& n, ROW) {
  threadgroup float shared[32];
  float sum = 0;
  for (uint i = t; i < n; i += threads) sum += in[row * n + i];
  sum = simd_sum(sum);
  if (lane == 0) shared[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    sum = simd_sum(lane < simdgroups ? shared[lane] : 0.0f);
    if (lane == 0) out[row] = sum;
  }
}

kernel void row_softmax(device float* out, device const float* in, constant uint& n, ROW) {
  threadgroup float shared[32];
  device const float* x = in + row * n;
  device float* y = out + row * n;
  float largest = -INFINITY;
  for (uint i = t; i < n; i += threads) largest = max(largest, x[i]);
  largest = simd_max(largest);
  if (lane == 0) shared[simdgroup] = largest;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    largest = simd_max(lane < simdgroups ? shared[lane] : -INFINITY);
    if (lane == 0) shared[0] = largest;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  largest = shared[0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0;
  for (uint i = t; i < n; i += threads) {
    const float e = exp(x[i] - largest);
    y[i] = e;
    sum += e;
  }
  const float scale = 1.0f / sum_of_group(sum, shared, lane, simdgroup, simdgroups);
  for (uint i = t; i < n; i += threads) y[i] *= scale;
}

kernel void rms_norm(device float* out, device const float* in, device const float* weight,
                     constant uint& n, ROW) {
  threadgroup float shared[32];
  float squares = 0;
  for (uint i = t; i < n; i += threads) {
    const float x = in[row * n + i];
    squares += x * x;
  }
  const float mean = sum_of_group(squares, shared, lane, simdgroup, simdgroups) / n;
  const float scale = precise::rsqrt(mean + 1e-5f);
  for (uint i = t; i < n; i += threads) out[row * n + i] = in[row * n + i] * scale * weight[i];
}

kernel void layer_norm(device float* out, device const float* in, device const float* weight,
                       device const float* bias, constant uint& n, ROW) {
  threadgroup float shared[32];
  device const float* x = in + row * n;
  float sum = 0;
  for (uint i = t; i < n; i += threads) sum += x[i];
  const float mean = sum_of_group(sum, shared, lane, simdgroup, simdgroups) / n;
  float squares = 0;
  for (uint i = t; i < n; i += threads) {
    const float d = x[i] - mean;
    squares += d * d;
  }
  const float variance = sum_of_group(squares, shared, lane, simdgroup, simdgroups) / n;
  const float scale = precise::rsqrt(variance + 1e-5f);
  for (uint i = t; i < n; i += threads)
    out[row * n + i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

// A thread for each element; a threadgroup makes a tile of 16 x 16.
kernel void matmul_tiles(device float* out, device const float* a, device const float* b,
                         constant uint& n, uint2 position [[thread_position_in_grid]],
                         uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup float a_tile[16][16], b_tile[16][16];
  float sum = 0;
  for (uint k = 0; k < n; k += 16) {
    a_tile[t.y][t.x] = a[position.y * n + k + t.x];
    b_tile[t.y][t.x] = b[(k + t.y) * n + position.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 16; ++i) sum += a_tile[t.y][i] * b_tile[i][t.x];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  out[position.y * n + position.x] = sum;
}

// A thread makes 4 x 4 elements; a threadgroup of 16 x 16 threads a tile of 64 x 64.
kernel void matmul_blocks(device float* out, device const float* a, device const float* b,
                          constant uint& n, uint2 group [[threadgroup_position_in_grid]],
                          uint2 t [[thread_position_in_threadgroup]],
                          uint index [[thread_index_in_threadgroup]]) {
  threadgroup float a_tile[64][16], b_tile[16][64];
  float sums[4][4] = {};
  for (uint k = 0; k < n; k += 16) {
    for (uint i = index; i < 64 * 16; i += 256) {
      a_tile[i / 16][i % 16] = a[(group.y * 64 + i / 16) * n + k + i % 16];
      b_tile[i / 64][i % 64] = b[(k + i / 64) * n + group.x * 64 + i % 64];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 16; ++i) {
      for (uint y = 0; y < 4; ++y) {
        for (uint x = 0; x < 4; ++x) sums[y][x] += a_tile[t.y * 4 + y][i] * b_tile[i][t.x * 4 + x];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint y = 0; y < 4; ++y) {
    for (uint x = 0; x < 4; ++x) {
      out[(group.y * 64 + t.y * 4 + y) * n + group.x * 64 + t.x * 4 + x] = sums[y][x];
    }
  }
}

// A simdgroup makes 32 x 32 elements, as 4 x 4 matrices; a threadgroup of four a tile of 64 x 64.
kernel void matmul_simdgroup_matrix(device float* out, device const float* a, device const float* b,
                                    constant uint& n, uint2 group [[threadgroup_position_in_grid]],
                                    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint row = group.y * 64 + simdgroup / 2 * 32, column = group.x * 64 + simdgroup % 2 * 32;
  simdgroup_float8x8 sums[4][4];
  for (uint y = 0; y < 4; ++y) {
    for (uint x = 0; x < 4; ++x) sums[y][x] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  for (uint k = 0; k < n; k += 8) {
    simdgroup_float8x8 left[4], right[4];
    for (uint i = 0; i < 4; ++i) {
      simdgroup_load(left[i], a + (row + i * 8) * n + k, n);
      simdgroup_load(right[i], b + k * n + column + i * 8, n);
    }
    for (uint y = 0; y < 4; ++y) {
      for (uint x = 0; x < 4; ++x) {
        simdgroup_multiply_accumulate(sums[y][x], left[y], right[x], sums[y][x]);
      }
    }
  }
  for (uint y = 0; y < 4; ++y) {
    for (uint x = 0; x < 4; ++x) {
      simdgroup_store(sums[y][x], out + (row + y * 8) * n + column + x * 8, n);
    }
  }
}
