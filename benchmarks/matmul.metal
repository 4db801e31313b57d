// C = A B, all of half or bfloat, sums in float: 64 x 64 elements of C a threadgroup, of which each
// of its four simdgroups has 32 x 32 in simdgroup matrices, 16 elements of the sums at a time. This
// is the blocking of MLX's matrix products.
//
// Threads: (columns / 64 * 128, rows / 64) in groups of (128, 1). Sizes: rows, columns, sums; rows
// and columns are multiples of 64, sums of 16.
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
#include <metal_stdlib>
using namespace metal;

constant constexpr int BLOCK = 64;   // rows and columns of C
constant constexpr int DEPTH = 16;   // elements of a sum
constant constexpr int PADDING = 8;  // keeps rows apart in the banks of threadgroup memory
constant constexpr int A_ROW = DEPTH + PADDING;
constant constexpr int B_ROW = BLOCK + PADDING;
constant constexpr int TILES = 4;  // of 8 x 8, along each side of a simdgroup's part

// This lane's two elements of a tile.
template <typename T>
inline vec<T, 2> elements(threadgroup const T* row, int column) {
  return *reinterpret_cast<threadgroup const vec<T, 2>*>(row + column);
}

template <typename T>
kernel void matmul(device const T* a, device const T* b, device T* c, constant int3& sizes,
                   uint3 group [[threadgroup_position_in_grid]],
                   uint index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]]) {
  threadgroup T a_block[BLOCK * A_ROW];
  threadgroup T b_block[DEPTH * B_ROW];
  const int columns = sizes.y, depth = sizes.z;
  const int t = int(index), quad = int(lane) / 4;
  // Apple's distribution of an 8 x 8 matrix over the lanes.
  const int row = (quad & 4) + int(lane) / 2 % 4;
  const int column = (quad & 2) * 2 + int(lane) % 2 * 2;
  const int part_row = int(simdgroup) / 2 * (BLOCK / 2);
  const int part_column = int(simdgroup) % 2 * (BLOCK / 2);

  // Each thread brings eight neighbouring elements of A and of B.
  const int a_row = t / 2, a_column = t % 2 * 8;
  const int b_row = t / 8, b_column = t % 8 * 8;
  device const T* a_from = a + (int(group.y) * BLOCK + a_row) * depth + a_column;
  device const T* b_from = b + b_row * columns + int(group.x) * BLOCK + b_column;
  threadgroup T* a_to = a_block + a_row * A_ROW + a_column;
  threadgroup T* b_to = b_block + b_row * B_ROW + b_column;

  simdgroup_float8x8 sums[TILES][TILES];
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  uint4 a_next = *reinterpret_cast<device const uint4*>(a_from);
  uint4 b_next = *reinterpret_cast<device const uint4*>(b_from);
  for (int at = 0; at < depth; at += DEPTH) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    *reinterpret_cast<threadgroup uint4*>(a_to) = a_next;
    *reinterpret_cast<threadgroup uint4*>(b_to) = b_next;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (at + DEPTH < depth) {
      a_next = *reinterpret_cast<device const uint4*>(a_from + at + DEPTH);
      b_next = *reinterpret_cast<device const uint4*>(b_from + (at + DEPTH) * columns);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
      simdgroup_matrix<T, 8, 8> left[TILES], right[TILES];
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        left[i].thread_elements() =
            elements(a_block + (part_row + i * 8 + row) * A_ROW + k, column);
        right[i].thread_elements() =
            elements(b_block + (k + row) * B_ROW + part_column + i * 8, column);
      }
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
          simdgroup_multiply_accumulate(sums[i][j], left[i], right[j], sums[i][j]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    device T* to = c + (int(group.y) * BLOCK + part_row + i * 8 + row) * columns +
                   int(group.x) * BLOCK + part_column + column;
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
      *reinterpret_cast<device vec<T, 2>*>(to + j * 8) = vec<T, 2>(sums[i][j].thread_elements());
    }
  }
}

#define INSTANTIATE(T)                                        \
  template [[host_name("matmul_" #T)]] kernel void matmul<T>( \
      device const T*, device const T*, device T*, constant int3&, uint3, uint, uint, uint);
INSTANTIATE(half)
INSTANTIATE(bfloat)
