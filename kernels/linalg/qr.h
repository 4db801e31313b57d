// Parameters of the kernels of qr.metal. Matrices lie by columns, one behind the other, without
// gaps.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Columns that are factorised before the others see them.
C10_METAL_CONSTEXPR unsigned kQrPanel = 32;
// Matrices, and panels, of up to so many rows and columns are the work of a thread.
C10_METAL_CONSTEXPR unsigned kQrThread = 8;
// Matrices of up to so many rows and columns are the work of a simdgroup.
C10_METAL_CONSTEXPR unsigned kQrSmall = 32;
// Vectors of small products that a thread has.
C10_METAL_CONSTEXPR unsigned kQrVectors = 2;

struct QrParameters {
  uint32_t matrices;
  uint32_t rows;     // of a matrix
  uint32_t columns;  // of a matrix
  uint32_t taus;     // of a matrix
  uint32_t first;    // row and column where a panel begins
  uint32_t width;    // of a panel: at most kQrPanel columns
  uint32_t padded;   // width as a multiple of four
};

// Of products of matrices with the reflectors of small ones: a vector that is multiplied is a
// column or a row.
struct QrVectorsParameters {
  uint32_t count;    // of vectors, of a matrix
  uint32_t size;     // of a vector: the rows of the matrix of reflectors
  uint32_t columns;  // of the matrix of reflectors
  uint32_t taus;     // of a matrix: so many reflectors
  int64_t matrix_stride;
  int64_t vector_stride;
  int64_t element_stride;
  uint32_t matrices;
  uint32_t is_adjoint;     // multiplies with Q^H
  uint32_t is_conjugated;  // what is multiplied are the conjugates, and so are the results
  uint32_t is_identity;    // what is multiplied is the identity, and not read
};

}  // namespace metalops
