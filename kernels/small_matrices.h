// Matrices of few rows and columns, each of which a thread holds, or lanes of a simdgroup, of which
// each has a row: in rows of packs (row_packs.h); tensors of them of any strides.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Rows, and columns, of a matrix that a thread holds at most.
C10_METAL_CONSTEXPR unsigned kMostOfOneThread = 8;
// That some lanes hold at most, in registers, and how many lanes these are. (Eight lanes for 32
// rows take twice as long on an H100 as a panel, 32 lanes three times as long on the software
// device.)
C10_METAL_CONSTEXPR unsigned kMostOfLanes = 16;
C10_METAL_CONSTEXPR unsigned kLanes = 4;

// Steps are counted in numbers.
struct MatrixSteps {
  int64_t matrix;
  int64_t row;
  int64_t column;
};

struct SmallMatricesParameters {
  MatrixSteps input;
  MatrixSteps output;
  uint32_t matrices;
  uint32_t rows;
  uint32_t columns;
  uint32_t mode;  // what a kernel says
};

}  // namespace metalops

#ifdef __METAL__
#include <metal_stdlib>

#include "column_packs.h"
#include "row_packs.h"

namespace metalops {

// Packs in a row of a matrix of at most SIZE columns.
template <typename T, uint SIZE>
constexpr constant uint kPacksOfRow = SIZE / kColumnsOfPack<T>;

// With zeros behind its rows and columns. Here and below, indices of the rows are constants, so
// that they may stay in registers.
template <typename T, uint SIZE>
inline void load_matrix(thread::metal::float4* rows, device const T* from, MatrixSteps steps,
                        uint row_count, uint column_count) {
  const auto numbers = elements_of<T>(rows);
#pragma unroll
  for (uint row = 0; row < SIZE; ++row) {
#pragma unroll
    for (uint column = 0; column < SIZE; ++column) {
      const bool is_there = row < row_count && column < column_count;
      numbers[row * SIZE + column] =
          is_there ? from[row * steps.row + column * steps.column] : T(0.0f);
    }
  }
}

template <typename T, uint SIZE>
inline void store_matrix(thread::metal::float4* rows, device T* to, MatrixSteps steps,
                         uint row_count, uint column_count) {
  const auto numbers = elements_of<T>(rows);
#pragma unroll
  for (uint row = 0; row < SIZE; ++row) {
#pragma unroll
    for (uint column = 0; column < SIZE; ++column) {
      if (row < row_count && column < column_count) {
        to[row * steps.row + column * steps.column] = numbers[row * SIZE + column];
      }
    }
  }
}

}  // namespace metalops
#endif
