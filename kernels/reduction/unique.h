// Parameters of the kernels of unique.metal, and the sizes of their threadgroups.
#pragma once
#include <c10/metal/common.h>
#ifndef __METAL__
#include <cstdint>
#endif

namespace metalops {

// Elements and threads of a threadgroup. A thread has eight adjacent elements.
C10_METAL_CONSTEXPR uint32_t kUniqueBlock = 2048;
C10_METAL_CONSTEXPR uint32_t kUniqueThreads = 256;

struct UniqueParameters {
  int64_t infinity;  // its bits, of floating-point numbers
  int32_t elements;
  int32_t blocks;
  int32_t is_float;         // 1: elements are compared as floating-point numbers
  int32_t has_order;        // 1: elements come from the positions that `order` has
  int32_t returns_inverse;  // 0 or 1
  int32_t unused;
};

}  // namespace metalops
