// Parameters of the kernels of eigh_merge.metal.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Neighbouring blocks of `block` rows of a tridiagonal matrix become one. The last one may be
// shorter, or have no neighbour.
struct EighMergeParameters {
  int32_t size;
  int32_t row;  // elements from eigenvector to eigenvector
  int32_t block;
  int32_t leaf;   // rows between neighbouring elements of `edges`
  int32_t edges;  // of each matrix
  int32_t merges;
};

}  // namespace metalops
