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

// With zeros behind its rows and columns.
template <typename T, uint SIZE>
inline void load_matrix(thread::metal::float4* rows, device const T* from, MatrixSteps steps,
                        uint row_count, uint column_count) {
  for (uint i = 0; i < SIZE * kPacksOfRow<T, SIZE>; ++i) {
    rows[i] = ::metal::float4(0.0f);
  }
  const auto numbers = elements_of<T>(rows);
  for (uint row = 0; row < row_count; ++row) {
    for (uint column = 0; column < column_count; ++column) {
      numbers[row * SIZE + column] = from[row * steps.row + column * steps.column];
    }
  }
}

template <typename T, uint SIZE>
inline void store_matrix(thread::metal::float4* rows, device T* to, MatrixSteps steps,
                         uint row_count, uint column_count) {
  const auto numbers = elements_of<T>(rows);
  for (uint row = 0; row < row_count; ++row) {
    for (uint column = 0; column < column_count; ++column) {
      to[row * steps.row + column * steps.column] = numbers[row * SIZE + column];
    }
  }
}

// A row of packs, of which the numbers before column `first` become zero.
template <typename T, uint SIZE>
inline void copy_row(thread::metal::float4* to, thread const ::metal::float4* row, uint first) {
  for (uint i = 0; i < kPacksOfRow<T, SIZE>; ++i) {
    to[i] = row[i];
  }
  const auto numbers = elements_of<T>(to);
  for (uint column = 0; column < first; ++column) {
    numbers[column] = T(0.0f);
  }
}

// row -= factor * other.
template <typename T, uint SIZE>
inline void subtract_row(thread::metal::float4* row, T factor,
                         thread const ::metal::float4* other) {
  for (uint i = 0; i < kPacksOfRow<T, SIZE>; ++i) {
    row[i] = minus_product(row[i], factor, other[i]);
  }
}

}  // namespace metalops
#endif
