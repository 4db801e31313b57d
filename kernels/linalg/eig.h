// Numbers of the kernels of eig.metal that its host side knows.
#pragma once
#include <c10/metal/common.h>

namespace metalops {

// What infos say of matrices with elements that are not finite.
C10_METAL_CONSTEXPR int kEigNotFinite = -1;

// Rows of the largest matrices that a simdgroup holds in device memory.
C10_METAL_CONSTEXPR int kMostOfEigDevice = 64;

}  // namespace metalops
