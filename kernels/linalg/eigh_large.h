// Parameters of the kernels of eigh_large.metal.
#pragma once
#include <c10/metal/common.h>

#include <kernels/linalg/common/squares.h>

namespace metalops {

// The width of a panel: columns that are reduced between two updates of the trailing matrix.
C10_METAL_CONSTEXPR int kEighPanel = 32;

// A column of a matrix being reduced. Columns are `stride` packs apart, with zeros below a matrix's
// rows.
struct EighColumnParameters {
  int32_t size;
  int32_t stride;
  int32_t reflectors;  // rows of the tensor of reflectors
  int32_t column;
  int32_t from;   // the first row of the column's reflector that is not zero
  int32_t start;  // the panel's first column
  int32_t slice;  // columns over which a thread sums products: a multiple of kEighPanel
  int32_t slices;
  int32_t first;        // the first row of the product of the matrix and the reflector
  int32_t kinds;        // kinds of vectors it is multiplied by: 1 (reflectors) or 2 (`panels`, too)
  uint32_t ends_panel;  // only the panel's last column is to be finished
};

// Parameters of sorting values and vectors, which are padded.
struct EighOrderParameters {
  int32_t size;
  int32_t padded;
  int32_t row;  // stride of vectors, in elements
};

}  // namespace metalops
