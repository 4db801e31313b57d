// Parameters of the kernels of hash_tensor.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

C10_METAL_CONSTEXPR unsigned kPackBytes = 16;

// Rows are hashed in pieces; what the kernels call a row is a piece.
struct HashTensorParameters {
  int64_t rows;
  int64_t columns;
  int64_t pieces;  // of a row
  int64_t piece;   // elements of each but the last of a row
};

}  // namespace metalops
