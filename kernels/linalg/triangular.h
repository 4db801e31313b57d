// Parameters of the kernels of triangular.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Rows that a thread processes at a time, and rows of the largest triangle of a threadgroup.
C10_METAL_CONSTEXPR uint32_t kTriangleBlockRows = 8;
C10_METAL_CONSTEXPR uint32_t kTriangleRows = 64;
C10_METAL_CONSTEXPR uint32_t kTrianglePacks = 2;  // packs of columns per thread

// The most rows of a triangle on a GPU, where a thread has a column of X in registers; and the
// threads, and so the columns, of a threadgroup.
C10_METAL_CONSTEXPR uint32_t kTriangleColumnRows = 64;
C10_METAL_CONSTEXPR uint32_t kComplexTriangleColumnRows = 32;
C10_METAL_CONSTEXPR uint32_t kTriangleThreads = 128;

// The elements of triangles in threadgroup memory: blocks of rows, each up to the diagonal of its
// last row.
C10_METAL_CONSTEXPR uint32_t kTriangleElements =
    kTriangleRows * (kTriangleRows + kTriangleBlockRows) / 2;
inline uint32_t filled_rows(uint32_t rows) {
  return (rows + kTriangleBlockRows - 1) / kTriangleBlockRows * kTriangleBlockRows;
}
inline uint32_t elements_of_triangle(uint32_t rows) {
  return filled_rows(rows) * (filled_rows(rows) + kTriangleBlockRows) / 2;
}

// Modes of the kernel for small systems.
C10_METAL_CONSTEXPR uint32_t kUpperTriangle = 1;
C10_METAL_CONSTEXPR uint32_t kUnitTriangle = 2;  // the diagonal is taken to be ones

// Parameters of a lower triangle whose rows may be numbered backwards: an upper triangle, from its
// last row on, is a lower one. Starts and strides of the matrix are counted in elements, those of
// the columns in packs.
struct TriangularParameters {
  int64_t matrix_start;
  int64_t matrix_row_stride;
  int64_t matrix_column_stride;
  int64_t matrix_batch_stride;
  int64_t columns_start;
  int64_t columns_row_stride;
  int64_t columns_batch_stride;
  uint32_t size;
  uint32_t matrices;
  uint32_t packs;           // packs of columns
  uint32_t group_matrices;  // matrices per threadgroup
  uint32_t group_packs;     // packs of each of them
  uint32_t is_unit;         // the diagonal is taken to be ones
  uint32_t is_conjugated;
  uint32_t padding;
};

}  // namespace metalops
