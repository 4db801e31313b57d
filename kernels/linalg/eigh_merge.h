// Parameters of the kernels of eigh_merge.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Parameters of merges of blocks of tridiagonal matrices (divide_and_conquer.h).
struct EighMergeParameters {
  int32_t size;  // columns of a matrix, padded
  int32_t block;
  int32_t region;
  uint32_t with_vectors;
};

}  // namespace metalops
