// Parameters of the kernels of indexing.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct EmbeddingRenormParameters {
  int64_t rows;
  int64_t columns;
  int64_t row_stride;  // strides are in elements
  int64_t column_stride;
  float max_norm;
  float norm_type;
};

}  // namespace metalops
