// Batches of small matrices in registers: a thread holds a whole matrix, or lanes of a simdgroup
// hold rows of it, as rows of packs (row_packs.h). The tensors have any strides.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The most rows, and columns, of a matrix that one thread holds.
C10_METAL_CONSTEXPR unsigned kMostOfOneThread = 8;
// The most rows, and columns, of a matrix that lanes hold in registers, and the number of these
// lanes. (Eight lanes for 32 rows take twice as long on an H100 as a panel, 32 lanes three times as
// long on the software device.)
C10_METAL_CONSTEXPR unsigned kMostOfLanes = 16;
C10_METAL_CONSTEXPR unsigned kLanes = 4;

// Strides, in elements.
struct MatrixStrides {
  int64_t matrix;
  int64_t row;
  int64_t column;
};

// Cholesky factors are lower triangles unless kUpper, LU exchanges rows where kPivoted, and LDL
// conjugates where kHermitian.
enum class SmallMatricesMode : int32_t { kPlain, kUpper, kPivoted, kHermitian };

struct SmallMatricesParameters {
  MatrixStrides input;
  MatrixStrides output;
  uint32_t matrices;
  uint32_t rows;
  uint32_t columns;
  SmallMatricesMode mode;
};

}  // namespace metalops

#ifdef __METAL__
#include <metal_stdlib>

#include <kernels/linalg/common/column_packs.h>
#include <kernels/linalg/common/row_packs.h>

namespace metalops {

// The number of packs in a row of a matrix of at most SIZE columns.
template <typename T, uint SIZE>
constexpr constant uint kPacksOfRow = SIZE / kColumnsOfPack<T>;

// Loads element i of a row of `count` elements, or zero if i is past its end, or if is_there is
// false, as there is no such row. There are no branches: indices past the end are clamped.
template <typename T>
METAL_FUNC T element_of_row(device const T* row, int64_t stride, uint i, uint count,
                            bool is_there) {
  const T element = row[::metal::min(i, count - 1) * stride];
  return is_there && i < count ? element : T(0.0f);
}
METAL_FUNC::metal::float4 pack_of_row(device const float* row, int64_t stride, uint first,
                                      uint count, bool is_there) {
  return ::metal::float4(element_of_row(row, stride, first, count, is_there),
                         element_of_row(row, stride, first + 1, count, is_there),
                         element_of_row(row, stride, first + 2, count, is_there),
                         element_of_row(row, stride, first + 3, count, is_there));
}
METAL_FUNC::metal::float4 pack_of_row(device const ::metal::float2* row, int64_t stride, uint first,
                                      uint count, bool is_there) {
  return ::metal::float4(element_of_row(row, stride, first, count, is_there),
                         element_of_row(row, stride, first + 1, count, is_there));
}

// Loads a matrix, padded with zeros. Here and below, row indices are compile-time constants, so
// that the rows may stay in registers.
template <typename T, uint SIZE>
inline void load_matrix(thread::metal::float4* rows, device const T* from, MatrixStrides strides,
                        uint row_count, uint column_count) {
#pragma unroll
  for (uint row = 0; row < SIZE; ++row) {
    device const T* const own = from + ::metal::min(row, row_count - 1) * strides.row;
#pragma unroll
    for (uint b = 0; b < kPacksOfRow<T, SIZE>; ++b) {
      rows[row * kPacksOfRow<T, SIZE> + b] =
          pack_of_row(own, strides.column, b * kColumnsOfPack<T>, column_count, row < row_count);
    }
  }
}

// Stores a matrix of row_count rows and column_count columns.
template <typename T, uint SIZE>
inline void store_matrix(thread::metal::float4* rows, device T* to, MatrixStrides strides,
                         uint row_count, uint column_count) {
  const auto elements = elements_of<T>(rows);
#pragma unroll
  for (uint row = 0; row < SIZE; ++row) {
#pragma unroll
    for (uint column = 0; column < SIZE; ++column) {
      if (row < row_count && column < column_count) {
        to[row * strides.row + column * strides.column] = elements[row * SIZE + column];
      }
    }
  }
}

}  // namespace metalops
#endif
