// Parameters of the kernels of eig.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// What infos say of matrices with elements that are not finite.
C10_METAL_CONSTEXPR int kEigNotFinite = -1;

// Rows of the largest matrices that a simdgroup holds in device memory.
C10_METAL_CONSTEXPR int kMostOfEigDevice = 64;

// Matrices of any strides.
struct EigParameters {
  int64_t next_matrix;  // in elements
  int64_t next_row;
  int64_t next_column;
  uint32_t matrices;
  int32_t size;
  uint32_t with_vectors;
};

}  // namespace metalops
