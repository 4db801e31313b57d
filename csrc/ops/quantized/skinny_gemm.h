// Host side of skinny GEMM with quantised weights (kernels/quantized/skinny_gemm.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace metalops {

// Returns the number of splits of K (split-K): how many simdgroups of a threadgroup share a sum,
// where columns are too few to keep a GPU busy.
inline int32_t splits_of(int64_t simdgroups, int64_t inner) {
  constexpr int64_t kManySimdgroups = 2048;
  constexpr int64_t kOfOne = 1024;  // elements that a simdgroup loads at once
  int32_t splits = 1;
  while (splits < 4 && simdgroups * splits < kManySimdgroups && inner > kOfOne * splits) {
    splits *= 2;
  }
  return splits;
}

// Returns a tensor, contiguous, whose beginning is aligned for vector loads.
inline at::Tensor ready_for_vectors(const at::Tensor& x) {
  const auto result = x.contiguous();
  return result.storage_offset() % 4 == 0 ? result : result.clone();
}

}  // namespace metalops
