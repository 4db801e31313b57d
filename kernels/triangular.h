// Parameters of the kernel of triangular.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

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
  int32_t size;
  uint32_t is_unit;  // the diagonal is taken for ones
  uint32_t is_conjugated;
};

}  // namespace metalops
