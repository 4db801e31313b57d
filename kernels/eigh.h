// Parameters of the kernels of eigh.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Hermitian matrices of which one triangle is read.
struct EighParameters {
  int64_t next_matrix;  // in elements
  int64_t next_row;
  int64_t next_column;
  uint32_t matrices;
  int32_t size;
  uint32_t is_upper;
  uint32_t with_vectors;
};

}  // namespace metalops
