// Parameters of the kernels of compressed_indices.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

struct CompressedIndicesParameters {
  int64_t rows;      // rows per matrix
  int64_t elements;  // elements per matrix
};

}  // namespace metalops
