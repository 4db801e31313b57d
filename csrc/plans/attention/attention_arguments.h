// Checks of the arguments of attention's operators. Fields have the names of the schemas in
// csrc/ops/attention; what no check needs is left out.
#pragma once
#include <csrc/plans/arguments.h>

#include <array>

namespace metalops::plans {

// The arguments of metalops::attention_forward.
struct AttentionForwardArguments {
  Operand query, key, value, attn_mask, sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_k,
      rng;
  double scale = 1;
  double softcap = 0;
  double dropout_p = 0;
};
void check_attention_forward(const AttentionForwardArguments& arguments);

struct AttentionBackwardArguments {
  Operand grad_out, grad_lse, out, lse;
  AttentionForwardArguments inputs;
  std::array<bool, 6> output_mask{};
};
void check_attention_backward(const AttentionBackwardArguments& arguments);

struct PagedAttentionArguments {
  Operand query, key_cache, value_cache, block_table, seq_lens, seq_starts, sinks, alibi_slopes,
      k_scale, v_scale;
  double scale = 1;
  double softcap = 0;
};
void check_paged_attention(const PagedAttentionArguments& arguments);

struct ReshapeAndCacheArguments {
  Operand key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale;
};
void check_reshape_and_cache(const ReshapeAndCacheArguments& arguments);

struct AppendToCacheArguments {
  Operand cache, tokens, seq_lens, block_table, rotary_cos, rotary_sin;
};
void check_append_to_cache(const AppendToCacheArguments& arguments);

struct RotateTokensArguments {
  Operand tokens, seq_lens, rotary_cos, rotary_sin;
};
void check_rotate_tokens(const RotateTokensArguments& arguments);

struct MergeAttentionArguments {
  Operand out_a, lse_a, out_b, lse_b;
};
void check_merge_attention(const MergeAttentionArguments& arguments);

struct MergeAttentionBackwardArguments {
  Operand grad_out, grad_lse;
  MergeAttentionArguments parts;
};
void check_merge_attention_backward(const MergeAttentionBackwardArguments& arguments);

}  // namespace metalops::plans
