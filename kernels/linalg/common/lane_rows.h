// Register tile of a small matrix (small_matrices.h) whose rows are distributed over some lanes of
// a simdgroup.
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>

namespace metalops {

// One lane's rows of a matrix of at most SIZE rows and columns: every LANES-th row, from row
// `lane`.
template <typename T, uint SIZE, uint LANES>
struct RowsOfLane {
  static constexpr constant uint kRows = SIZE / LANES;
  static constexpr constant uint kColumns = kColumnsOfPack<T>;
  static constexpr constant uint kPacks = kPacksOfRow<T, SIZE>;

  ::metal::float4 x[kRows][kPacks];
  uint lane;
  uint count;  // rows of the matrix, or zero

  uint row(uint r) const thread { return r * LANES + lane; }

  // Loads the lane's rows, padded with zeros.
  void load(device const T* matrix, MatrixStrides strides, uint columns) thread {
    for (uint r = 0; r < kRows; ++r) {
      for (uint b = 0; b < kPacks; ++b) {
        x[r][b] = ::metal::float4(0.0f);
        for (uint i = 0; i < kColumns; ++i) {
          const uint column = b * kColumns + i;
          if (row(r) < count && column < columns) {
            set_column(x[r][b], i, matrix[row(r) * strides.row + column * strides.column]);
          }
        }
      }
    }
  }

  void store(device T* matrix, MatrixStrides strides, uint columns) const thread {
    for (uint r = 0; r < kRows; ++r) {
      for (uint b = 0; b < kPacks; ++b) {
        for (uint i = 0; i < kColumns; ++i) {
          const uint column = b * kColumns + i;
          if (row(r) < count && column < columns) {
            matrix[row(r) * strides.row + column * strides.column] =
                metalops::column(x[r][b], i, T());
          }
        }
      }
    }
  }
};

}  // namespace metalops
