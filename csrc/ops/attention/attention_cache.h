// KV caches on MPS, below autograd: the host interface of kernels/attention/attention_cache.metal.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

#include <optional>

namespace metalops {

// Returns the tokens of each sequence, (B, length, Hkv, E), in the dtype `type`, padded with zeros.
// cache: (pages, page size, Hkv, E), or (samples, tokens, Hkv, E) without a block table. scale: one
// float32. Elements are multiplied with both `scale` and `number`.
METALOPS_HIDDEN at::Tensor gather_cache(const at::Tensor& cache,
                                        const std::optional<at::Tensor>& block_table,
                                        const at::Tensor& seq_lens,
                                        const std::optional<at::Tensor>& scale, double number,
                                        at::ScalarType type);

}  // namespace metalops
