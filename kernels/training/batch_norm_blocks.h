// The division of a row among the threads of a group: in blocks of 16 elements, which are whole or
// half cache lines, and which a CPU processes as vectors.
#pragma once
#include <metal_stdlib>

namespace metalops {

constant constexpr int64_t kBlock = 16;

template <typename T>
inline ::metal::float4 four(constant T* x) {
  return ::metal::float4(static_cast<float>(x[0]), static_cast<float>(x[1]),
                         static_cast<float>(x[2]), static_cast<float>(x[3]));
}

// Calls visit(place) for each element of the blocks of thread `lane` of `lanes`. The row has
// `count` elements with stride `stride`, from `first` on.
template <typename Visit>
inline void for_blocks(int64_t first, int64_t count, int64_t stride, uint lane, uint lanes,
                       thread Visit& visit) {
  for (int64_t block = lane * kBlock; block < count; block += lanes * kBlock) {
    if (stride == 1 && block + kBlock <= count) {
      for (int64_t i = 0; i < kBlock; ++i) {
        visit(first + block + i);
      }
    } else {
      const int64_t end = ::metal::min(block + kBlock, count);
      for (int64_t i = block; i < end; ++i) {
        visit(first + i * stride);
      }
    }
  }
}

}  // namespace metalops
