// Skinny GEMM with quantised weights by simdgroup matrices, for up to eight or sixteen rows of x
// and eight lines of weights per tile of TILES: each weight is dequantised once for all rows. With
// split-K, each of the threadgroup's simdgroups takes every kSplits-th run of 128 elements of K.
// Each lane that holds a line of a matrix has 32 codes of it. The order of K does not matter as
// long as it is the same in both operands.
#pragma once
#include <metal_simdgroup_matrix>
#include <metal_stdlib>

#include <kernels/common/matmul.h>
#include <kernels/quantized/skinny_gemm.h>

namespace metalops {
namespace skinny {

constant constexpr int kSplits = 8;
// With this limit, GPUs of 65536 registers have two threadgroups of kSplits simdgroups each.
constant constexpr int kMostThreads = 512;

// Each lane has so many steps, two of its codes each: those that lie DISTANCE apart in the lane's
// 32 elements. 1 is for pairs of matrices, whose elements of x are words as they are loaded.
constant constexpr int kSteps = 16;

template <int DISTANCE>
inline int first_of_step(int step) {
  return step / DISTANCE * 2 * DISTANCE + step % DISTANCE;
}

// A lane's part of EIGHTS * 8 rows of x: 32 elements of 16 bits of each, in two runs of 16, in two
// words for two steps. With simdgroup matrices alone, they are elements of two rows, of which other
// lanes have the codes.
template <typename T, int EIGHTS, int DISTANCE>
struct RowsOfX {
  uint words[EIGHTS][2][kSteps / 2];

  // Returns which of the four lanes that have the codes of a line a lane's elements of x are for.
  static inline int lane_of_codes(matmul::LaneElements own) {
#if defined(__METALOPS_MATRIX_PAIRS__)
    return own.column / 2;
#else
    return own.row / 2;
#endif
  }

  // x: the first element of the first run in row 0. last: the last row, which stands for those
  // behind it.
  inline void load(device const T* x, int64_t stride, int first_row, int last, int run_stride,
                   matmul::LaneElements own) thread {
#pragma unroll
    for (int r = 0; r < EIGHTS; ++r) {
#if defined(__METALOPS_MATRIX_PAIRS__)
      device const T* const of_row = x + ::metal::min(first_row + r * 8 + own.row, last) * stride;
      uint4 all[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        all[i] = *reinterpret_cast<device const uint4*>(of_row + i / 2 * run_stride + i % 2 * 8);
      }
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int at =
            DISTANCE == 1 ? i : (first_of_step<DISTANCE>(i / 2 * 2) + i % 2 * DISTANCE) / 2;
        words[r][i % 2][i / 2] = all[at / 4][at % 4];
      }
#else
      constexpr int together = DISTANCE < 8 ? DISTANCE / 2 : 4;
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        device const T* const of_row =
            x + ::metal::min(first_row + r * 8 + own.column + s, last) * stride;
#pragma unroll
        for (int i = 0; i < kSteps / 2; i += together) {
          const int at = first_of_step<DISTANCE>(2 * i) + own.row % 2 * DISTANCE;
          const auto some = *reinterpret_cast<device const ::metal::vec<uint, together>*>(
              of_row + at / 16 * run_stride + at % 16);
#pragma unroll
          for (int e = 0; e < together; ++e) {
            words[r][s][i + e] = some[e];
          }
        }
      }
#endif
    }
  }

  inline void clear() thread {
#pragma unroll
    for (int r = 0; r < EIGHTS; ++r) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int i = 0; i < kSteps / 2; ++i) {
          words[r][s][i] = 0u;
        }
      }
    }
  }

  // Returns a step's part of the right operand: of columns of rows, or, in pairs of matrices, of
  // rows.
  inline void take(thread::metal::simdgroup_matrix<T, 8, 8>& b, int r, int step) const thread {
    const uint x = words[r][0][step / 2];
    const uint y = words[r][1][step / 2];
    const uint of_step = DISTANCE == 1   ? words[r][step % 2][step / 2]
                         : step % 2 == 0 ? (x & 0xffffu) | y << 16
                                         : x >> 16 | (y & 0xffff0000u);
    b.thread_elements() = ::metal::as_type<::metal::vec<T, 2>>(of_step);
  }
};

template <int TILES, int EIGHTS>
inline void clear_matrices(thread::metal::simdgroup_float8x8 (&sums)[EIGHTS][TILES]) {
#pragma unroll
  for (int r = 0; r < EIGHTS; ++r) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
      sums[r][t] = ::metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
}

// Adds the products of two steps: of the lines' codes, a[0] and a[1], with all rows of x.
template <int TILES, int EIGHTS, typename T, int DISTANCE>
inline void multiply_steps(thread::metal::simdgroup_float8x8 (&sums)[EIGHTS][TILES],
                           thread const ::metal::simdgroup_matrix<T, 8, 8> (&a)[2][TILES],
                           thread const RowsOfX<T, EIGHTS, DISTANCE>& x, int step) {
#pragma unroll
  for (int r = 0; r < EIGHTS; ++r) {
    ::metal::simdgroup_matrix<T, 8, 8> b[2];
    x.take(b[0], r, step);
    x.take(b[1], r, step + 1);
#if defined(__METALOPS_MATRIX_PAIRS__)
#pragma unroll
    for (int t = 0; t < TILES; t += 2) {
      ::metal::multiply_accumulate_pairs(sums[r][t], sums[r][t + 1], a[0][t], a[0][t + 1], a[1][t],
                                         a[1][t + 1], b[0], b[1]);
    }
#else
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int t = 0; t < TILES; ++t) {
        ::metal::simdgroup_multiply_accumulate(sums[r][t], a[s][t], b[s], sums[r][t]);
      }
    }
#endif
  }
}

// Sums the simdgroups' matrices, lines of weights by rows of x, and stores them. row, column: the
// first of the threadgroup.
template <int TILES, int EIGHTS, typename T>
inline void store_matrices(StoreRow<T> store,
                           thread::metal::simdgroup_float8x8 (&sums)[EIGHTS][TILES],
                           threadgroup float (&parts)[kSplits][EIGHTS * TILES * 64], int row,
                           int column, uint simdgroup, uint lane) {
  const matmul::LaneElements own = matmul::elements_of_lane(lane);
#pragma unroll
  for (int r = 0; r < EIGHTS; ++r) {
#pragma unroll
    for (int t = 0; t < TILES; ++t) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        parts[simdgroup][(r * 8 + own.column + e) * TILES * 8 + t * 8 + own.row] =
            sums[r][t].thread_elements()[e];
      }
    }
  }
  ::metal::threadgroup_barrier(::metal::mem_flags::mem_threadgroup);
  const int rows = ::metal::min(store.rows - row, EIGHTS * 8);
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
