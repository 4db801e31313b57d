// Constants of the kernels of eig.metal that its host side needs.
#pragma once
#include <c10/metal/common.h>

namespace metalops {

// The info of a matrix with an element that is not finite.
C10_METAL_CONSTEXPR int kEigNotFinite = -1;

// Rows of the largest matrices that a simdgroup holds in device memory.
C10_METAL_CONSTEXPR int kMostOfEigDevice = 64;

}  // namespace metalops
