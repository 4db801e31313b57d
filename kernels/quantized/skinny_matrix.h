// Skinny GEMM with quantised weights by simdgroup matrices, for up to eight rows of x and eight
// lines of weights per tile of TILES: each weight is dequantised once for all rows. With split-K,
// each of the threadgroup's simdgroups takes every kSplits-th run of 128 elements of K. Each lane
// that holds a line of a matrix has 32 codes of it. The order of K does not matter as long as it is
// the same in both operands.
#pragma once
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/quantized/skinny_gemm.h>

namespace metalops {
namespace skinny {

constant constexpr int kSplits = 8;

// Sums the simdgroups' matrices, lines of weights by rows of x, and stores them. row, column: the
// first of the threadgroup.
template <int TILES, typename T>
inline void store_matrices(StoreRow<T> store, thread::metal::simdgroup_float8x8 (&sums)[TILES],
                           threadgroup float (&parts)[kSplits][TILES * 64], int row, int column,
                           uint simdgroup, uint lane) {
  const matmul::LaneElements own = matmul::elements_of_lane(lane);
#pragma unroll
  for (int t = 0; t < TILES; ++t) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      parts[simdgroup][(own.column + e) * TILES * 8 + t * 8 + own.row] =
          sums[t].thread_elements()[e];
    }
  }
  ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
  const int rows = ::metal::min(store.rows - row, 8);
  for (int i = static_cast<int>(simdgroup * 32 + lane); i < rows * TILES * 8; i += kSplits * 32) {
    float total = 0.0f;
    for (int s = 0; s < kSplits; ++s) {
      total += parts[s][i];
    }
    store(row + i / (TILES * 8), column + i % (TILES * 8), total);
  }
}

}  // namespace skinny
}  // namespace metalops
