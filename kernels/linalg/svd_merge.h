// Parameters of the kernels of svd_merge.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Parameters of merges of blocks of bidiagonal matrices (divide_and_conquer.h).
struct SvdMergeParameters {
  int32_t size;    // columns of a matrix, padded
  int32_t values;  // rows that are not padding
  int32_t block;
  int32_t region;
  int32_t matrices;
  uint32_t with_vectors;
};

}  // namespace metalops
