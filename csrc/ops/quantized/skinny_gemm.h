// Host side of what products of few rows with encoded weights have in common
// (kernels/quantized/skinny_gemm.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace metalops {

// Over how many simdgroups of a threadgroup sums are spread: where columns are few, there would
// not be enough of them for a GPU.
inline int32_t splits_of(int64_t simdgroups, int64_t inner) {
  constexpr int64_t kManySimdgroups = 2048;
  constexpr int64_t kOfOne = 1024;  // elements that a simdgroup takes at once
  int32_t splits = 1;
  while (splits < 4 && simdgroups * splits < kManySimdgroups && inner > kOfOne * splits) {
    splits *= 2;
  }
  return splits;
}

// Tensors that vector loads read from where they begin.
inline at::Tensor ready_for_vectors(const at::Tensor& x) {
  const auto result = x.contiguous();
  return result.storage_offset() % 4 == 0 ? result : result.clone();
}

}  // namespace metalops
