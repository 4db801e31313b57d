// Parameters of the kernels of svd.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Square matrices.
struct SvdParameters {
  int64_t next_matrix;  // in elements
  int64_t next_row;
  int64_t next_column;
  uint32_t matrices;
  int32_t size;
  uint32_t with_vectors;
};

}  // namespace metalops
