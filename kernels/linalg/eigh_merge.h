// Parameters of the kernels of eigh_merge.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Merges of blocks of tridiagonal matrices, see merge.h.
struct EighMergeParameters {
  int32_t size;  // columns of a matrix, padded
  int32_t block;
  int32_t region;
  uint32_t with_vectors;
};

}  // namespace metalops
