// Parameters of the kernels of hash_tensor.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

C10_METAL_CONSTEXPR unsigned kPackBytes = 16;

// Rows are hashed in pieces; the kernels' rows are pieces.
struct HashTensorParameters {
  int64_t rows;
  int64_t columns;
  int64_t pieces;  // per row
  int64_t piece;   // elements per piece; the last one of a row may be shorter
};

}  // namespace metalops
