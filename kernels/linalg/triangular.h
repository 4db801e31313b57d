// Parameters of the kernels of triangular.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Rows that a thread takes at a time, and rows of the largest triangle that a threadgroup takes.
C10_METAL_CONSTEXPR uint32_t kTriangleBlockRows = 8;
C10_METAL_CONSTEXPR uint32_t kTriangleRows = 64;
C10_METAL_CONSTEXPR uint32_t kTrianglePacks = 2;  // of columns, that a thread has

// What a threadgroup keeps of triangles: blocks of rows, each as far as its last row reaches.
C10_METAL_CONSTEXPR uint32_t kTriangleNumbers =
    kTriangleRows * (kTriangleRows + kTriangleBlockRows) / 2;
inline uint32_t filled_rows(uint32_t rows) {
  return (rows + kTriangleBlockRows - 1) / kTriangleBlockRows * kTriangleBlockRows;
}
inline uint32_t numbers_of_triangle(uint32_t rows) {
  return filled_rows(rows) * (filled_rows(rows) + kTriangleBlockRows) / 2;
}

// Modes of the kernel for small systems.
C10_METAL_CONSTEXPR uint32_t kUpperTriangle = 1;
C10_METAL_CONSTEXPR uint32_t kUnitTriangle = 2;  // the diagonal is taken for ones

// Of a lower triangle, whose numbering of rows may run backwards: an upper one from its last row is
// a lower one. Starts and steps of the matrix are counted in numbers, those of the columns in
// packs.
struct TriangularParameters {
  int64_t matrix_start;
  int64_t matrix_row;
  int64_t matrix_column;
  int64_t matrix_batch;
  int64_t columns_start;
  int64_t columns_row;
  int64_t columns_batch;
  uint32_t size;
  uint32_t matrices;
  uint32_t packs;           // of columns
  uint32_t group_matrices;  // that a threadgroup has
  uint32_t group_packs;     // of each of them
  uint32_t is_unit;         // the diagonal is taken for ones
  uint32_t is_conjugated;
};

}  // namespace metalops
