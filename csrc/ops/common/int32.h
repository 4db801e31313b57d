// Sizes that kernels count in 32 bits.
#pragma once
#include <c10/util/Exception.h>
#include <metalops/library.h>

#include <cstdint>
#include <limits>

namespace metalops {

inline constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

// The largest size that kernels may round up to a multiple of a tile's 64 rows or columns.
inline constexpr int64_t kLargestTiledSize = kInt32Max - 64;

// Returns size as int32_t; raises RuntimeError if it is larger than `largest`, which is at most
// kInt32Max. what: the parts of the error's text in front of the size.
template <class... What>
METALOPS_HIDDEN inline int32_t checked_int32(int64_t size, int64_t largest, const What&... what) {
  TORCH_CHECK(size <= largest, what..., " ", size, " is too large for MPS");
  return static_cast<int32_t>(size);
}

}  // namespace metalops
