// Parameters of the kernels of qr.metal. Matrices are column-major and contiguous.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// The width of a panel: columns that are factorised before the trailing matrix is updated.
C10_METAL_CONSTEXPR unsigned kQrPanel = 32;
// The most rows and columns of a matrix, or panel, that one thread factorises.
C10_METAL_CONSTEXPR unsigned kQrThread = 8;
// The most rows and columns of a matrix that a simdgroup factorises.
C10_METAL_CONSTEXPR unsigned kQrSmall = 32;
// The most threads of a panel whose columns are in registers, which do not suffice for more.
C10_METAL_CONSTEXPR unsigned kMostQrThreads = 512;
// Vectors per thread in products with small Q.
C10_METAL_CONSTEXPR unsigned kQrVectors = 2;

struct QrParameters {
  uint32_t matrices;
  uint32_t rows;        // rows of a matrix
  uint32_t columns;     // columns of a matrix
  uint32_t taus;        // reflectors of a matrix
  uint32_t first;       // row and column where a panel begins
  uint32_t width;       // columns of a panel: at most kQrPanel columns
  uint32_t padded;      // width as a multiple of four
  uint32_t with_block;  // its block reflector is written, too
};

// Parameters of products of Q, of a small matrix, with vectors: columns or rows of another matrix.
struct QrVectorsParameters {
  uint32_t count;    // vectors per matrix
  uint32_t size;     // elements of a vector: the rows of the matrix of reflectors
  uint32_t columns;  // of the matrix of reflectors
  uint32_t taus;     // reflectors per matrix
  int64_t matrix_stride;
  int64_t vector_stride;
  int64_t element_stride;
  uint32_t matrices;
  uint32_t is_adjoint;     // multiplies with Q^H
  uint32_t is_conjugated;  // the vectors are conjugated before and after
  uint32_t is_identity;    // the vectors are the identity's, and are not read
};

// Parameters of writing out R.
struct QrUpperParameters {
  int64_t matrix_stride;  // those of R
  int64_t row_stride;
  int64_t column_stride;
  uint32_t rows;  // of a factored matrix
  uint32_t columns;
};

}  // namespace metalops
