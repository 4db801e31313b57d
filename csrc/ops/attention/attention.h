// Attention on MPS, below autograd: the host interface of kernels/attention/attention.metal.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

namespace metalops {

// The options of metalops::attention_forward and metalops::attention_backward beside query, key and
// value; python/metalops/ops/attention.py documents them.
struct AttentionOptions {
  std::optional<at::Tensor> attn_mask;
  std::optional<at::Tensor> sinks;
  std::optional<at::Tensor> alibi_slopes;
  std::optional<at::Tensor> cu_seqlens_q;
  std::optional<at::Tensor> cu_seqlens_k;
  std::optional<at::Tensor> seqused_k;
  std::optional<at::Tensor> rng;
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  double scale = 1;
  int64_t window_left = -1;
  int64_t window_right = -1;
  bool bottom_right = false;
  double softcap = 0;
  double dropout_p = 0;
  std::optional<at::Tensor> k_scale = std::nullopt;  // one float32; in the forward pass only
};

// Returns an uninitialised tensor without gaps that is like `like`, in its order of dimensions, but
// has so many features.
METALOPS_HIDDEN at::Tensor empty_in_order(const at::Tensor& like, int64_t features);

// Returns the output, in query's order of dimensions, and its log-sum-exp (lse).
std::tuple<at::Tensor, at::Tensor> attention_forward(const at::Tensor& query, const at::Tensor& key,
                                                     const at::Tensor& value,
                                                     const AttentionOptions& options);

// The gradients of query, key, value, attn_mask, sinks and alibi_slopes, as far as they are
// `wanted`.
using AttentionGradients =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
AttentionGradients attention_backward(const at::Tensor& grad_out,
                                      const std::optional<at::Tensor>& grad_lse,
                                      const at::Tensor& query, const at::Tensor& key,
                                      const at::Tensor& value, const at::Tensor& out,
                                      const at::Tensor& lse, const AttentionOptions& options,
                                      std::array<bool, 6> wanted);

}  // namespace metalops
