// Caches of keys and values on MPS, below autograd: kernels/attention/attention_cache.metal.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

#include <optional>

namespace metalops {

// Whether a cache's elements are codes, which have a scale.
inline bool is_cache_code(at::ScalarType type) {
  return type == at::kChar || type == at::kFloat8_e4m3fn || type == at::kFloat8_e5m2;
}

// What the kernels call the dtype of a cache.
METALOPS_HIDDEN const char* cache_type(at::ScalarType type);

// RuntimeError unless the scale of a cache is one float32 on its device, or not given.
METALOPS_HIDDEN void check_cache_scale(const char* name, const char* argument,
                                       const at::Tensor& cache,
                                       const std::optional<at::Tensor>& scale);

// The tokens of each sequence, (B, length, Hkv, E) with the dtype `type`, zeros behind them. cache:
// (pages, page size, Hkv, E), or of samples without a table. scale: one float32; both multiply.
METALOPS_HIDDEN at::Tensor gather_cache(const at::Tensor& cache,
                                        const std::optional<at::Tensor>& block_table,
                                        const at::Tensor& seq_lens,
                                        const std::optional<at::Tensor>& scale, double number,
                                        at::ScalarType type);

}  // namespace metalops
