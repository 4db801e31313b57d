// Attention of few queries (decoding) on MPS, below autograd: the host interface of
// kernels/attention/attention_decode.metal.
#pragma once
#include <ATen/core/Tensor.h>
#include <metalops/library.h>

#include <cstdint>
#include <optional>
#include <tuple>

namespace metalops {

// The options beside queries, keys and values. Tensors are on the device of the queries.
struct AttentionDecodeOptions {
  std::optional<at::Tensor> attn_mask;     // 4 dimensions, those of the scores or 1
  std::optional<at::Tensor> sinks;         // (Hq,)
  std::optional<at::Tensor> alibi_slopes;  // (Hq,) or (B, Hq)
  std::optional<at::Tensor> seqused_k;     // (B,) int32: keys before this count
  std::optional<at::Tensor> first_k;       // (B,) int32: keys from this on count
  std::optional<at::Tensor> block_table;   // (B, pages) int32: keys and values are in pages
  std::optional<at::Tensor> k_scale;       // one float32 each
  std::optional<at::Tensor> v_scale;
  double scale = 1;
  double value_scale = 1;
  int64_t window_left = -1;
  int64_t window_right = -1;
  bool bottom_right = true;
  double softcap = 0;
};

// Computes attention of query (B, Hq, L, E) over key (B, Hkv, S, E) and value (B, Hkv, S, Ev), or,
// with a block table, over pages (pages, Hkv, page size, E or Ev); strides are arbitrary. Keys and
// values have the dtype of the query, or are int8 or float8_e4m3fn. Returns the output, in the
// query's dtype and order of dimensions, and its lse, float32 (B, Hq, L).
METALOPS_HIDDEN std::tuple<at::Tensor, at::Tensor> attention_decode(
    const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const AttentionDecodeOptions& options);

}  // namespace metalops
