// Skinny GEMM with quantised weights. Each simdgroup computes a ROWS x COLUMNS block of outputs;
// with split-K, adjacent simdgroups share a block and their partial sums are added. Lanes split K.
#pragma once
#include <metal_simdgroup>
#include <metal_stdlib>

namespace metalops {
namespace skinny {

constant constexpr int kSimdgroups = 4;

// Loads COUNT adjacent elements as float; COUNT is a multiple of four.
template <int COUNT, typename T>
inline void load_adjacent(thread float* to, device const T* from) {
#pragma unroll
  for (int i = 0; i < COUNT / 4; ++i) {
    const ::metal::vec<T, 4> four = reinterpret_cast<device const ::metal::vec<T, 4>*>(from)[i];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[4 * i + e] = static_cast<float>(four[e]);
    }
  }
}

template <int ROWS, int COLUMNS>
inline void clear(thread float (&sums)[ROWS][COLUMNS]) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      sums[r][c] = 0.0f;
    }
  }
}

// The rows and columns of a threadgroup's blocks. `splits` simdgroups, a power of two, share a
// block (split-K).
struct Block {
  int64_t pair;
  int row;
  int column;
};
// Finds a threadgroup's blocks. It has no integer division if there is one pair and at most ROWS
// rows: divisions take a notable part of a small product's time.
template <int ROWS, int COLUMNS>
inline Block block_of(uint group, int splits, int rows, int columns) {
  const uint of_group =
      static_cast<uint>(kSimdgroups * COLUMNS) >> ::metal::ctz(static_cast<uint>(splits));
  const uint across = (static_cast<uint>(columns) + of_group - 1) >> ::metal::ctz(of_group);
  Block block;
  block.pair = 0;
  block.row = 0;
  uint left = group;
  if (group >= across) {
    const uint down = (static_cast<uint>(rows) + ROWS - 1) / ROWS;
    const uint line = group / across;
    left = group - line * across;
    block.pair = line / down;
    block.row = static_cast<int>(line % down) * ROWS;
  }
  block.column = static_cast<int>(left * of_group);
  return block;
}

// The first column of a simdgroup's block, and the simdgroup's index within the split-K group.
struct Share {
  int column;
  int part;
};
template <int COLUMNS>
inline Share share_of(Block block, uint simdgroup, int splits) {
  const int number = static_cast<int>(simdgroup) >> ::metal::ctz(static_cast<uint>(splits));
  return {block.column + number * COLUMNS, static_cast<int>(simdgroup) & (splits - 1)};
}

// Stores sums times a factor, plus a bias if there is one.
template <typename T>
struct StoreRow {
  device T* result;
  device const T* bias;
  float factor;
  int rows;
  int columns;
  bool has_bias;

  inline void operator()(int row, int column, float sum) const {
    if (row < rows && column < columns) {
      sum *= factor;
      sum += has_bias ? static_cast<float>(bias[column]) : 0.0f;
      result[static_cast<int64_t>(row) * columns + column] = static_cast<T>(sum);
    }
  }
};

// Reduces the sums over lanes and over the simdgroups of a split-K group, and stores them. row: the
// first row.
template <int ROWS, int COLUMNS, typename T>
inline void store_sums(StoreRow<T> store, thread float (&sums)[ROWS][COLUMNS],
                       threadgroup float (&parts)[kSimdgroups][ROWS * COLUMNS], int row,
                       Share share, int splits, uint simdgroup, uint lane) {
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
      const float total = ::metal::simd_sum(sums[r][c]);
      if (lane == 0) {
        parts[simdgroup][r * COLUMNS + c] = total;
      }
    }
  }
  ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
  const int r = static_cast<int>(lane) / COLUMNS;
  const int c = static_cast<int>(lane) % COLUMNS;
  if (share.part == 0 && r < ROWS) {
    float total = 0.0f;
    for (int i = 0; i < splits; ++i) {
      total += parts[simdgroup + i][r * COLUMNS + c];
    }
    store(row + r, share.column + c, total);
  }
}

}  // namespace skinny
}  // namespace metalops
