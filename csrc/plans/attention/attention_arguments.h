// Checks of the arguments of attention's operators. Fields have the names of the schemas in
// csrc/ops/attention; what no check needs is left out.
#pragma once
#include <csrc/plans/arguments.h>

#include <array>

namespace metalops::plans {

// The arguments of metalops::attention_forward.
struct AttentionForwardArguments {
  Operand query;
  Operand key;
  Operand value;
  Operand attn_mask;
  Operand sinks;
  Operand alibi_slopes;
  Operand cu_seqlens_q;
  Operand cu_seqlens_k;
  Operand seqused_k;
  Operand rng;
  double scale = 1;
  double softcap = 0;
  double dropout_p = 0;
};
void check_attention_forward(const AttentionForwardArguments& arguments);

struct AttentionBackwardArguments {
  Operand grad_out;
  Operand grad_lse;
  Operand out;
  Operand lse;
  AttentionForwardArguments inputs;
  std::array<bool, 6> output_mask{};
};
void check_attention_backward(const AttentionBackwardArguments& arguments);

struct PagedAttentionArguments {
  Operand query;
  Operand key_cache;
  Operand value_cache;
  Operand block_table;
  Operand seq_lens;
  Operand seq_starts;
  Operand sinks;
  Operand alibi_slopes;
  Operand k_scale;
  Operand v_scale;
  double scale = 1;
  double softcap = 0;
};
void check_paged_attention(const PagedAttentionArguments& arguments);

struct ReshapeAndCacheArguments {
  Operand key;
  Operand value;
  Operand key_cache;
  Operand value_cache;
  Operand slot_mapping;
  Operand k_scale;
  Operand v_scale;
};
void check_reshape_and_cache(const ReshapeAndCacheArguments& arguments);

struct AppendToCacheArguments {
  Operand cache;
  Operand tokens;
  Operand seq_lens;
  Operand block_table;
  Operand rotary_cos;
  Operand rotary_sin;
};
void check_append_to_cache(const AppendToCacheArguments& arguments);

struct RotateTokensArguments {
  Operand tokens;
  Operand seq_lens;
  Operand rotary_cos;
  Operand rotary_sin;
};
void check_rotate_tokens(const RotateTokensArguments& arguments);

struct MergeAttentionArguments {
  Operand out_a;
  Operand lse_a;
  Operand out_b;
  Operand lse_b;
};
void check_merge_attention(const MergeAttentionArguments& arguments);

struct MergeAttentionBackwardArguments {
  Operand grad_out;
  Operand grad_lse;
  MergeAttentionArguments parts;
};
void check_merge_attention_backward(const MergeAttentionBackwardArguments& arguments);

}  // namespace metalops::plans
