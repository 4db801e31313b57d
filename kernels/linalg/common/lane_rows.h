// The rows that a lane has, in registers, of a matrix of which some lanes of a simdgroup have all
// rows (small_matrices.h).
#pragma once
#include <metal_stdlib>

#include <kernels/linalg/common/row_packs.h>
#include <kernels/linalg/common/small_matrices.h>

namespace metalops {

// The rows that a lane has of a matrix of at most SIZE rows and columns, whose lanes take turns.
template <typename T, uint SIZE, uint LANES>
struct RowsOfLane {
  static constexpr constant uint kRows = SIZE / LANES;
  static constexpr constant uint kColumns = kColumnsOfPack<T>;
  static constexpr constant uint kPacks = kPacksOfRow<T, SIZE>;

  ::metal::float4 x[kRows][kPacks];
  uint lane;
  uint count;  // of the rows of the matrix, or zero

  uint row(uint r) const thread { return r * LANES + lane; }

  // With zeros behind its rows and columns.
  void load(device const T* matrix, MatrixSteps steps, uint columns) thread {
    for (uint r = 0; r < kRows; ++r) {
      for (uint b = 0; b < kPacks; ++b) {
        x[r][b] = ::metal::float4(0.0f);
        for (uint i = 0; i < kColumns; ++i) {
          const uint column = b * kColumns + i;
          if (row(r) < count && column < columns) {
            set_column(x[r][b], i, matrix[row(r) * steps.row + column * steps.column]);
          }
        }
      }
    }
  }

  void store(device T* matrix, MatrixSteps steps, uint columns) const thread {
    for (uint r = 0; r < kRows; ++r) {
      for (uint b = 0; b < kPacks; ++b) {
        for (uint i = 0; i < kColumns; ++i) {
          const uint column = b * kColumns + i;
          if (row(r) < count && column < columns) {
            matrix[row(r) * steps.row + column * steps.column] = metalops::column(x[r][b], i, T());
          }
        }
      }
    }
  }
};

}  // namespace metalops
